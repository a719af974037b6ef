"""SIGKILL at the points where a run touches the disk: always resumable, never another bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "kill_points.py"


def outcome(folder, every, *more):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), str(every), *more],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_some_points_and_resumed(tmp_path):
    found = outcome(tmp_path, every=11)
    assert found["points"] >= 6 and found["bad"] == []


@pytest.mark.faults
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_every_point_and_resumed(tmp_path):
    found = outcome(tmp_path, every=1)
    assert found["points"] >= 60 and found["bad"] == []


@pytest.mark.faults
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_during_snapshots_and_resumed(tmp_path):
    """Every spectrum once, of the right weights, whatever the trainer was doing when it was killed."""
    found = outcome(tmp_path, 4, "tracked")
    assert found["points"] >= 25 and found["bad"] == []
