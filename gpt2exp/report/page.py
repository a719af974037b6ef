"""The page: one self-contained HTML file without scripts, and the same content in Markdown."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from gpt2exp.report.findings import Findings
from gpt2exp.report.sections import lay_out

PNG = b"\x89PNG"
MARKDOWN_SPECIAL = re.compile(r"[\\`*\[\]|~<>&]|(?<![^\W_])_|_(?![^\W_])")
"""Characters that would be markup; an underscore inside a word is none."""


def render_html(findings: Findings, figures: Mapping[str, bytes]) -> str:
    """The report as one HTML file that loads nothing: figures (stem -> SVG or PNG) are inside, there is no script."""
    sources = {stem: data_uri(data) for stem, data in figures.items()}
    return _template("page.html.j2", autoescape=True).render(page=lay_out(findings, figures), sources=sources)


def render_markdown(findings: Findings, figure_files: Mapping[str, str]) -> str:
    """The report in Markdown; `figure_files` are stem -> path relative to the file."""
    template = _template("page.md.j2", finalize=escape_markdown)
    text = template.render(page=lay_out(findings, figure_files), sources=figure_files)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def data_uri(data: bytes) -> str:
    """A picture as a URI that holds it."""
    kind = "png" if data.startswith(PNG) else "svg+xml"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def escape_markdown(value: Any) -> Any:
    """Text that Markdown shows as it is, on one line; `Markup` passes."""
    if isinstance(value, Markup):
        return value
    return Markup(MARKDOWN_SPECIAL.sub(_escaped, " ".join(str(value).split())))


def _escaped(found: re.Match[str]) -> str:
    entities = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
    return entities.get(found[0], f"\\{found[0]}")


def _template(name: str, *, autoescape: bool = False, finalize: Callable[..., Any] | None = None) -> Template:
    environment = Environment(
        autoescape=autoescape,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["path"] = lambda text: Markup(text.replace(" ", "%20"))
    return environment.from_string(files("gpt2exp.report").joinpath(name).read_text(encoding="utf-8"))
