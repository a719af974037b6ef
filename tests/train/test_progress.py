"""What is printed, and that a reader who leaves does not take the run along."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from runs import OVERRIDES

from gpt2exp import rundir
from gpt2exp.train.progress import Progress, clock


def row(step, loss, gated=False):
    return {"step": step, "loss": loss, "gated": gated, "lr/decay": 1e-3, "lr/no_decay": 2e-3}


def timing(step):
    return {"step": step, "data": 0.1, "update": 0.4}


def test_plain_lines_hold_step_share_smoothed_loss_rate_speed_and_eta(tmp_path, capsys):
    progress = Progress(num_steps=20, tokens_per_step=1000, log_file=tmp_path / "train.log")
    progress.start()
    progress.updates([row(1, 4.0), row(2, 2.0)], [timing(1), timing(2)])
    progress.close()
    line = capsys.readouterr().out.strip()
    assert line.startswith("step  2/20  10%  loss 3.8000  lr 2.00e-03  500 ms  2,000 tok/s  ETA ")
    assert (tmp_path / "train.log").read_text().strip() == line


def test_gated_steps_are_named_and_leave_the_smoothed_loss(capsys):
    progress = Progress(20, 1000, None)
    progress.updates([row(1, 4.0), row(2, None, gated=True)], [timing(1), timing(2)])
    out = capsys.readouterr().out
    assert "step 2: gated" in out and "loss 4.0000" in out


def test_an_evaluation_that_is_not_finite_says_so(capsys):
    Progress(20, 1000, None).evaluation({"step": 5, "val_loss": None, "token_error": 1.0})
    assert "val loss not finite" in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61, "1:01"), (3723, "1:02:03")])
def test_clock(seconds, text):
    assert clock(seconds) == text


@pytest.mark.skipif(os.name == "nt", reason="pipes of another kind")
def test_closing_the_pipe_ends_the_printing_not_the_training(tmp_path):
    command = [sys.executable, "-m", "gpt2exp", *OVERRIDES, f"hydra.run.dir={tmp_path}/run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=120) == 0, process.stderr.read()
    assert rundir.read_record(tmp_path / "run")["status"] == "complete"
    assert "step 12/12 100%" in (tmp_path / "run/train.log").read_text()
