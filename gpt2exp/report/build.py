"""A report's files: one page in HTML and in Markdown, and beside them tables as CSV and figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from gpt2exp import atomic
from gpt2exp.report.findings import Findings
from gpt2exp.report.page import render_html, render_markdown
from gpt2exp.report.sections import CAPTIONS, all_tables
from gpt2exp.spectral.plots import save

KEYS = (
    "runs", "comparisons", "pairs", "arms", "first_to_target", "reaching", "crossings", "evaluations", "curve",
    "pair_ledger", "differences", "tuning", "plan", "identity", "identity_differences", "environment", "completeness",
)  # fmt: skip
"""Stems of the CSVs that a report may write; curves are numbered."""
NUMBERED = re.compile(r"_\d+$")
FOLDER = "report"
FIGURES = f"{FOLDER}/figures"


def publish(findings: Findings, figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write `report.html`, `report.md`, `report/*.csv` and `report/figures/*`, each atomically; their paths.

    Equal findings give equal bytes: every time on the page comes from a record. The pages are written last, so they
    never speak of a file that is not there, and a file of an earlier report that this one does not have is removed.

    Raises:
        OSError: the disk refused; what was there stays whole.
    """
    drawn = save(figures, folder / FIGURES)
    tables = {folder / FOLDER / f"{table.key}.csv": table.csv for table in all_tables(findings)}
    for path, text in tables.items():
        atomic.write_text(path, text)
    html, markdown = folder / "report.html", folder / "report.md"
    vectors = {stem: (folder / FIGURES / f"{stem}.svg").read_bytes() for stem in figures}
    atomic.write_text(html, render_html(findings, vectors))
    atomic.write_text(markdown, render_markdown(findings, {stem: f"{FIGURES}/{stem}.png" for stem in figures}))
    _remove_others(folder, {*drawn, *tables})
    return [html, markdown, *tables, *drawn]


def _remove_others(folder: Path, current: set[Path]) -> None:
    """What an earlier report left here would pass for a part of this one; files that no report makes stay."""
    for pattern in (f"{FOLDER}/*.csv", f"{FIGURES}/*.png", f"{FIGURES}/*.svg"):
        for path in set(folder.glob(pattern)) - current:
            if NUMBERED.sub("", path.stem) in (*KEYS, *CAPTIONS):
                path.unlink()
