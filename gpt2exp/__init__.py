"""Controlled optimizer experiments on an unmodified GPT-2."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpt2exp.report.frames import Results

__version__ = "0.1.0"


def results(folder: str | Path) -> Results:
    """Every run at or below `folder` as tidy pandas frames: see `gpt2exp.report.frames.Results`.

    Raises:
        StorageError: no run there, or a damaged one.
    """
    from gpt2exp.report import frames

    return frames.results(folder)
