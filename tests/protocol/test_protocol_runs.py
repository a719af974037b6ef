"""A protocol as a user meets it: one command to the report, stopped and continued, never mixed up."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpt2exp import rundir

SIX = ["seed=42/muonclip_nano", "seed=42/adamw_nano", "seed=43/muonclip_nano", "seed=43/adamw_nano",
       "seed=44/muonclip_nano", "seed=44/adamw_nano"]  # fmt: skip
OUTPUT = Path("outputs/six_run_nano")
TIMED = {"elapsed_seconds", "seconds", "attempts", "started", "ended"}
"""What two executions of the same protocol cannot share."""


def command(tiny_run):
    """The command line of a six-run protocol that takes seconds."""
    return ["-m", "protocol=six_run_nano", *tiny_run, "plan.target_val_loss=5.5"]


@pytest.fixture
def six(tiny_run):
    return command(tiny_run)


@pytest.fixture(scope="module")
def finished(tiny_run, tmp_path_factory):
    """A whole protocol, run once as a user would; what it printed, and its folder."""
    folder = tmp_path_factory.mktemp("protocol")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-m", "gpt2exp", *command(tiny_run)]
    done = subprocess.run(call, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, folder / OUTPUT


@pytest.fixture
def whole(finished, cli):
    """A copy of it at `outputs/six_run_nano` below the working directory of `cli`."""
    shutil.copytree(finished[1], OUTPUT)
    return OUTPUT


def statuses(folder=OUTPUT):
    return {
        name: rundir.read_record(folder / name)["status"] if rundir.is_run(folder / name) else "absent" for name in SIX
    }


def tables(folder):
    """Every table of a report, without columns of time."""
    found = {}
    for file in sorted((folder / "report").glob("*.csv")):
        with file.open(newline="") as text:
            rows = [row for row in csv.DictReader(text) if row.get("axis") != "seconds"]
        found[file.name] = [{name: value for name, value in row.items() if name not in TIMED} for row in rows]
    return found


def test_one_command_from_start_to_report(finished, whole):
    assert set(statuses().values()) == {"complete"}
    assert "Primary endpoint, final validation loss" in finished[0] and "report.html" in finished[0]
    plan = json.loads((whole / "protocol.json").read_text())
    assert [run["folder"] for run in plan["runs"]] == SIX
    hashes = [rundir.read_record(whole / name)["initial_weights_sha256"] for name in SIX]
    assert hashes[0::2] == hashes[1::2] and len(set(hashes)) == 3


def test_the_report_again_is_the_same_bytes(cli, whole):
    files = [whole / "report.html", whole / "report.md", *whole.glob("report/*.csv"), *whole.glob("report/figures/*")]
    before = {file: file.read_bytes() for file in files}
    assert len(before) > 15
    assert cli("report", str(whole)).status == 0
    assert {file: file.read_bytes() for file in files} == before


def test_without_m_nothing_starts(cli, six):
    done = cli(*six[1:])
    assert done.status == 2
    assert done.problems == ["protocol=six_run_nano is a multirun: add -m (gpt2exp -m protocol=six_run_nano)"]
    assert not Path("outputs").exists()


def test_a_run_that_is_not_planned_is_refused_before_the_first(cli, six):
    done = cli(*six, "seed=9")
    assert done.status == 2 and "plan.seeds" in done.err and not Path("outputs").exists()


def test_hardware_is_one_for_all(cli, six):
    done = cli(*(text for text in six if not text.startswith("hardware.threads")), "hardware.threads=1,2")
    assert done.status == 2 and not Path("outputs").exists()


def test_the_first_incomplete_run_stops_the_protocol(cli, six):
    done = cli(*six, "stop_after_steps=2")
    assert done.status == 4
    assert list(statuses().values()) == ["paused", *["absent"] * 5]


def test_an_incomplete_protocol_says_so_and_compares_nothing(cli, six):
    cli(*six, "stop_after_steps=2")
    done = cli("report", str(OUTPUT))
    assert done.status == 4 and "incomplete" in done.out.lower()
    page = (OUTPUT / "report.md").read_text()
    assert "Incomplete" in page or "incomplete" in page
    assert not (OUTPUT / "report/comparisons.csv").exists()


def test_going_on_must_be_asked_for(cli, six):
    assert cli(*six, "stop_after_steps=2").status == 4
    refused = cli(*six)
    assert refused.status == 3
    assert "0 of 6 runs of this plan are complete, 1 were begun; resume.enabled=true goes on" in refused.err


def test_complete_runs_are_skipped(cli, six, whole):
    done = cli(*six, "resume.enabled=true")
    assert done.status == 0 and done.out.count("complete already, nothing to do") == 6


def test_a_changed_plan_in_the_same_directory_is_refused(cli, six, whole):
    before = (OUTPUT / "protocol.json").read_bytes()
    done = cli(*six, "schedule.min_lr_ratio=0.1", "resume.enabled=true")
    assert done.status == 2 and "holds the runs of another plan" in done.err
    assert (OUTPUT / "protocol.json").read_bytes() == before


KILLED = """
import os, signal, sys
from gpt2exp.train import checkpoint
plain, saves = checkpoint.save, 0
def counted(*arguments):
    global saves
    saves += 1
    path = plain(*arguments)
    if saves == 7:  # two checkpoints a run: the first of run 4
        os.kill(os.getpid(), signal.SIGKILL)
    return path
checkpoint.save = counted
from gpt2exp.main import main
main(sys.argv[1:])
"""


def test_killed_at_run_4_and_continued_gives_the_same_report(cli, six, whole, tmp_path):
    call = [sys.executable, "-c", KILLED, *six, "hydra.sweep.dir=killed"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(call, capture_output=True, cwd=tmp_path, env=environment, check=False)
    assert killed.returncode == -9
    assert list(statuses(Path("killed")).values()) == [*["complete"] * 3, "running", "absent", "absent"]
    done = cli(*six, "hydra.sweep.dir=killed", "resume.enabled=true")
    assert done.status == 0, done.err
    expected, found = tables(whole), tables(Path("killed"))
    assert expected.keys() == found.keys() and len(expected) > 8
    for name in expected:
        assert found[name] == expected[name], name


def test_one_byte_of_a_data_hash_is_refused_and_named(cli, whole):
    file = OUTPUT / SIX[3] / "run.json"
    record = json.loads(file.read_text())
    digest = record["training"]["data"]["corpus"]
    record["training"]["data"]["corpus"] = ("0" if digest[0] != "0" else "1") + digest[1:]
    file.write_text(json.dumps(record))
    done = cli("report", str(OUTPUT))
    assert "training.data.corpus" in done.out
    assert not (OUTPUT / "report/comparisons.csv").exists()


def test_a_report_on_one_run_and_on_unrelated_runs(cli, tiny_run):
    assert cli(*tiny_run, "hydra.run.dir=a").status == 0
    assert cli(*tiny_run, "hydra.run.dir=b", "seed=7", "model.n_layer=1").status == 0
    assert cli("report", "a").status == 0 and Path("a/report.html").is_file()
    done = cli("report", "a", "b", "--to", "both")
    assert done.status == 0 and Path("both/report.html").is_file()
    assert not Path("both/report/comparisons.csv").exists()


@pytest.mark.parametrize("arguments", [[], ["nowhere"], ["--to", "x"], ["--what"]])
def test_report_says_what_it_needs(cli, arguments):
    done = cli("report", *arguments)
    assert done.status == 2 and len(done.problems) == 1
