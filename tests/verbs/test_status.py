"""`gpt2exp status`: one line a run, whatever became of it."""

from __future__ import annotations

import json

import pytest
from filelock import FileLock

from gpt2exp import rundir
from gpt2exp.rundir import RunDirectory, Status

RECORD = {"arm": "adamw", "seed": 7, "training": {"schedule": {"num_steps": 10}}}


@pytest.fixture
def make_run(tmp_path):
    """A run directory in a given state, with two rows and an evaluation."""

    def make(name, status, reason=None, **more):
        run = RunDirectory.claim(tmp_path / name, {**RECORD, **more}, "")
        run.begin_attempt({})
        run.append("metrics", [{"step": 1, "loss": 5.0}, {"step": 2, "loss": 4.25}])
        run.append("evaluations", [{"step": 2, "val_loss": 4.5}])
        run.set_status(status, reason)
        run.close()
        return tmp_path / name

    return make


def table(text: str) -> dict[str, list[str]]:
    """Rows by the name of the run, cells split at two or more spaces."""
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()[1:]]
    return {row[0]: row[1:] for row in rows}


def test_a_complete_run(make_run, cli):
    make_run("a", Status.complete)
    done = cli("status", "a")
    assert (done.status, done.err) == (0, "")
    assert " ".join(done.out.split()[:10]) == "run arm seed status step loss val loss attempts updated"
    assert table(done.out)["a"][:7] == ["adamw", "7", "complete", "2/10", "4.2500", "4.5000", "1"]


def test_reasons_and_inexact_resumes_are_shown(make_run, cli):
    make_run("p", Status.paused, "stop_after_steps=2")
    make_run("f", Status.failed, "[Errno 28] No space left on device")
    make_run("i", Status.complete, inexact=[{"threads": [1, 2]}])
    rows = table(cli("status", ".").out)
    assert rows["p"][2] == "paused (stop_after_steps=2)"
    assert rows["f"][2] == "failed ([Errno 28] No space left on device)"
    assert rows["i"][2] == "complete (inexact resume)"


def test_a_run_that_no_process_holds_was_killed(make_run, cli, tmp_path):
    folder = make_run("k", Status.running)
    assert table(cli("status", ".").out)["k"][2] == "killed (gpt2exp resume k)"
    with FileLock(folder / ".lock"):
        assert table(cli("status", ".").out)["k"][2] == "running"
    RunDirectory.claim(tmp_path / "c", RECORD, "").close()
    assert table(cli("status", ".").out)["c"][2] == "killed (gpt2exp resume c)"


def test_looking_leaves_no_trace(make_run, cli):
    folder = make_run("k", Status.running)
    (folder / ".lock").unlink()
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert table(cli("status", ".").out)["k"][2] == "killed (gpt2exp resume k)"
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before


def test_a_run_without_rows(cli, tmp_path):
    run = RunDirectory.claim(tmp_path / "n", RECORD, "")
    run.begin_attempt({})
    row = table(cli("status", ".").out)["n"]
    run.close()
    assert row[:6] == ["adamw", "7", "running", "0/10", "-", "-"]


def test_gated_rows_and_missing_losses_are_dashes(make_run, cli):
    folder = make_run("g", Status.running)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step":3,"loss":null}\n{"step":4,"lo')
    assert table(cli("status", ".").out)["g"][3:5] == ["3/10", "-"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("run.json", "{"),
        ("run.json", ""),
        ("run.json", "[1]"),
        ("run.json", '{"schema":1}'),
        ("run.json", '{"schema":99}'),
        ("metrics.jsonl", "rubbish\n"),
        ("evaluations.jsonl", '{"step":1}\n'),
    ],
)
def test_an_unreadable_run_does_not_hide_the_others(file, content, make_run, cli):
    make_run("a", Status.complete)
    (make_run("b", Status.complete) / file).write_text(content)
    done = cli("status", ".")
    rows = table(done.out)
    assert done.status == 0 and rows["a"][2] == "complete"
    assert rows["b"] == ["unreadable: damaged, or of another version"]


def test_runs_below_a_folder_are_named_from_there_in_order(make_run, cli):
    for name in ("x/seed=2/b", "x/seed=1/b", "x/seed=1/a"):
        make_run(name, Status.complete)
    assert list(table(cli("status", "x").out)) == ["seed=1/a", "seed=1/b", "seed=2/b"]


def test_the_working_directory_may_be_the_run(make_run, cli, monkeypatch):
    folder = make_run("here", Status.complete)
    monkeypatch.chdir(folder)
    assert "here" in table(cli("status", ".").out)


@pytest.mark.parametrize("folder", ["nowhere", ".", "file"])
def test_a_folder_without_runs_is_refused(folder, cli, tmp_path):
    (tmp_path / "file").write_text("")
    done = cli("status", folder)
    assert (done.status, done.problems) == (2, [f"{folder}: no run directory at or below it"])


def test_a_real_run_is_listed_as_it_ended(cli, tiny_run):
    assert cli(*tiny_run, "arm=x", "stop_after_steps=2", "hydra.run.dir=r").status == 4
    rows = table(cli("status", ".").out)
    assert rows["r"][:4] == ["x", "42", "paused (stop_after_steps=2)", "2/4"]
    assert json.loads((rundir.find_runs(rundir.Path("r"))[0] / "run.json").read_text())["status"] == "paused"
