"""What `gpt2exp --cfg job` prints for the default and for every option of every group.

    python tests/golden/cfg_job.py        writes the golden files again; review the diff

`cfg_job_default.yaml` is the whole output for the defaults; `cfg_job_options.txt` shows, for every option,
the lines by which its output differs from that. A new key is one line in review, not one in every option.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hydra import compose
from omegaconf import DictConfig, OmegaConf

from gpt2exp.command_line import groups
from gpt2exp.compose import hydra_ready
from gpt2exp.gate import planned_runs
from gpt2exp.schemas import CONFIG_NAME

FOLDER = Path(__file__).parent
DEFAULT = FOLDER / "cfg_job_default.yaml"
OPTIONS = FOLDER / "cfg_job_options.txt"


@cache
def composed(*overrides: str) -> DictConfig:
    """What Hydra composes."""
    with hydra_ready():
        return compose(CONFIG_NAME, overrides=list(overrides))


def job(*overrides: str) -> str:
    """The output of `gpt2exp --cfg job <overrides>`."""
    return OmegaConf.to_yaml(composed(*overrides))


def runs(protocol: str) -> list[str]:
    """What each run of a protocol sets."""
    with hydra_ready():
        cfg = compose(CONFIG_NAME, overrides=[f"protocol={protocol}"], return_hydra_config=True)
        return [f"run {name}" for name, _ in planned_runs(cfg.hydra)]


def options() -> Iterator[tuple[str, str]]:
    """Every group with each of its options."""
    return ((group, option) for group, found in groups().items() for option in found)


def changes(before: str, after: str) -> Iterator[str]:
    """Lines that differ, each under the top-level key it belongs to."""
    section, shown = "", ""
    for line in difflib.ndiff(before.splitlines(), after.splitlines()):
        mark, text = line[0], line[2:]
        if mark != "?" and not text.startswith((" ", "-")):
            section = text.partition(":")[0]
        if mark in "+-":
            if section != shown:
                yield f"{section}:"
            shown = section
            yield f"{mark} {text}"


def rendered() -> dict[Path, str]:
    """The golden files as they should be."""
    default = job()
    lines = []
    for group, option in options():
        lines += [f"$ gpt2exp --cfg job {group}={option}", *changes(default, job(f"{group}={option}"))]
        lines += [*(runs(option) if group == "protocol" else []), ""]
    return {DEFAULT: default, OPTIONS: "\n".join(lines)}


if __name__ == "__main__":
    for file, text in rendered().items():
        file.write_text(text, encoding="utf-8", newline="\n")
