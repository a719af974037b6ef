"""hardware.preflight: off asks for nothing, required refuses without a stamp that matches, auto makes one first."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from pathlib import Path

import pytest

from gpt2exp.preflight import stamp


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GPT2EXP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def record(folder="run"):
    return json.loads((Path(folder) / "run.json").read_text())


def test_off_asks_for_nothing_and_records_nothing(cli, tiny_run, cache):
    assert cli(*tiny_run, "hydra.run.dir=run").status == 0
    assert record()["preflight"] is None and not cache.exists()


def test_required_refuses_before_anything_is_created(cli, tiny_run, tmp_path):
    done = cli(*tiny_run, "hardware.preflight=required", "hydra.run.dir=runs/run")
    assert done.status == 3 and not (tmp_path / "runs").exists()
    (problem,) = done.problems
    assert problem.startswith("hardware.preflight=required: no preflight of this run was made; run gpt2exp preflight ")
    assert problem.endswith(" ".join([*tiny_run, "hardware.preflight=required"]))


def test_required_starts_what_was_tried_out_and_remembers_the_stamp(cli, tiny_run, cache):
    required = [*tiny_run, "hardware.preflight=required"]
    assert cli("preflight", *required).status == 0
    assert cli(*required, "hydra.run.dir=run").status == 0
    (file,) = (cache / "preflight").iterdir()
    assert record()["preflight"] == {"path": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert record()["status"] == "complete"


def test_a_stamp_of_another_run_or_execution_does_not_start_it(cli, tiny_run):
    required = [*tiny_run, "hardware.preflight=required"]
    cli("preflight", *required)
    other_seed = cli(*required, "seed=7", "hydra.run.dir=run")
    other_rows = cli(*required, "hardware.micro_batch_size=1", "hydra.run.dir=run")
    assert other_seed.status == other_rows.status == 3
    assert "no preflight of this run" in other_seed.err
    assert "execution.micro_batch_size was 4, is 1" in other_rows.err


def test_a_stamp_from_yesterday_does_not_start_it(cli, tiny_run, monkeypatch):
    required = [*tiny_run, "hardware.preflight=required"]
    cli("preflight", *required)
    monkeypatch.setattr(stamp, "VALID", timedelta(seconds=-1))
    assert "hours old" in cli(*required, "hydra.run.dir=run").err


def test_the_command_of_a_refusal_makes_the_stamp_that_was_missing(cli, tiny_run):
    import shlex

    required = [*tiny_run, "hardware.preflight=required", "data.order=exact_sequential"]
    command = cli(*required).err.rpartition("; run ")[2]
    program, *arguments = shlex.split(command)
    assert program == "gpt2exp" and cli(*arguments).status == 0
    assert cli(*required, "hydra.run.dir=run").status == 0


def test_auto_tries_out_first_and_then_trains(cli, tiny_run, cache):
    done = cli(*tiny_run, "hardware.preflight=auto", "hydra.run.dir=run")
    assert done.status == 0, done
    (file,) = (cache / "preflight").iterdir()
    assert record()["preflight"]["path"] == str(file)


def test_auto_refuses_with_the_preflights_own_line_and_status(cli, tiny_run, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPT2EXP_CACHE", str(tmp_path / "file"))
    done = cli(*tiny_run, "hardware.preflight=auto", "hydra.run.dir=runs/run")
    assert done.status == 7 and not (tmp_path / "runs").exists()
    (problem,) = done.problems
    assert problem.startswith(f"preflight: {tmp_path / 'file'}")


def test_resuming_needs_a_stamp_too_and_a_complete_run_does_not(cli, tiny_run, cache):
    required = [*tiny_run, "hardware.preflight=required"]
    cli("preflight", *required)
    assert cli(*required, "hydra.run.dir=run", "stop_after_steps=2").status == 4
    (file,) = (cache / "preflight").iterdir()
    file.unlink()
    assert cli("resume", "run").status == 3
    assert cli("preflight", "--config", "run").status == 0
    assert cli("resume", "run").status == 0
    assert record()["preflight"] == stamp.record(record()["digests"]["run"])
    file.unlink()
    assert cli("resume", "run").status == 0
