"""`gpt2exp`, nothing else: what the README's first command does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpt2exp import rundir
from gpt2exp.train import checkpoint


@pytest.mark.slow
def test_the_default_run_is_complete_and_below_the_unigram_entropy(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": str(min(2, os.cpu_count() or 1))}
    done = subprocess.run(
        [sys.executable, "-m", "gpt2exp"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (run,) = rundir.find_runs(tmp_path / "outputs")
    record = rundir.read_record(run)
    entropy = float(done.stdout.split("unigram entropy of the same tokens ")[1].split(":")[0])
    assert record["status"] == "complete" and record["final_val_loss"] < entropy - 0.5
    assert [row["step"] for row in rundir.read_rows(run, "metrics")] == list(range(1, 201))
    assert [row["step"] for row in rundir.read_rows(run, "evaluations")] == [0, 50, 100, 150, 200]
    assert checkpoint.steps(run / "checkpoints") == [100, 200]
    assert "sample:" in done.stdout
