"""A queue in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt2exp.spectral.snapshots import Queue


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """Empty; its folder does not exist yet."""
    return Queue(tmp_path / "spectra")
