"""What is refused before a run, which directory a run gets, and when a multirun stops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from gpt2exp import rundir
from gpt2exp.compose import hydra_ready
from gpt2exp.errors import ConfigError, NumericalError
from gpt2exp.gate import check_multirun, planned_runs
from gpt2exp.schemas import CONFIG_NAME


def statuses(root: Path) -> dict[str, str]:
    """Status of every run below `root`, by its path from there."""
    return {str(run.relative_to(root)): rundir.read_record(run)["status"] for run in rundir.find_runs(root)}


# one run


def test_a_run_ends_complete_in_a_dated_directory_of_its_own(cli, tiny_run, tmp_path):
    done = cli(*tiny_run, "optimizer=sgd", "seed=7")
    assert (done.status, done.err) == (0, "")
    (run,) = rundir.find_runs(tmp_path)
    date, name = run.relative_to(tmp_path / "outputs").parts
    assert len(date) == 10 and "_sgd_seed7_" in name
    record = rundir.read_record(run)
    assert record["status"] == "complete" and record["choices"]["optimizer"] == "sgd"
    assert record["overrides"] == [*tiny_run, "optimizer=sgd", "seed=7"]
    assert not (run / ".hydra").exists() and not (run / "gpt2exp.log").exists()


def test_two_runs_of_the_same_second_get_two_directories(cli, tiny_run, tmp_path):
    assert cli(*tiny_run).status == cli(*tiny_run).status == 0
    assert len(rundir.find_runs(tmp_path)) == 2


def test_a_used_directory_is_refused_and_stays_as_it_was(cli, tiny_run, tmp_path):
    assert cli(*tiny_run, "hydra.run.dir=here").status == 0
    before = contents(tmp_path / "here")
    done = cli(*tiny_run, "hydra.run.dir=here", "seed=1")
    assert done.status == 3
    (line,) = done.problems
    assert "holds a run already" in line and "gpt2exp resume" in line
    assert contents(tmp_path / "here") == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_a_folder_with_anything_in_it_is_refused(cli, tiny_run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    done = cli(*tiny_run, "hydra.run.dir=mine")
    assert (done.status, len(done.problems)) == (3, 1)
    assert contents(tmp_path / "mine") == {"thesis.txt": b"precious"}
    assert cli(*tiny_run, "hydra.run.dir=").status == 3


@pytest.mark.parametrize("place", ["file", "file/below", "x" * 300], ids=["file", "below a file", "long name"])
def test_a_place_where_no_directory_can_be_is_a_storage_error(place, cli, tiny_run, tmp_path):
    (tmp_path / "file").write_text("text")
    done = cli(*tiny_run, f"hydra.run.dir={place}")
    assert (done.status, len(done.problems)) == (7, 1)
    assert "choose another hydra.run.dir" in done.err
    assert contents(tmp_path) == {"file": b"text"}


def test_a_folder_that_may_not_be_written_is_a_storage_error(cli, tiny_run, monkeypatch):
    def refused(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.mkdir", refused)
    done = cli(*tiny_run, "hydra.run.dir=locked")
    assert done.status == 7
    assert done.problems == ["locked: Permission denied; choose another hydra.run.dir or hydra.sweep.dir"]


@pytest.mark.parametrize("folder", ["a/b/c", "outputs"])
def test_inputs_that_are_refused_leave_no_directory(folder, cli, tmp_path):
    done = cli("data=text", "data.paths=[nowhere.txt]", f"hydra.run.dir={folder}")
    assert (done.status, len(done.problems)) == (6, 1)
    assert list(tmp_path.iterdir()) == []


def test_an_unexpected_error_is_a_traceback_and_exit_1(cli, tiny_run, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("gpt2exp.experiment.run", broken)
    done = cli(*tiny_run)
    assert done.status == 1 and done.err.endswith("ZeroDivisionError: a bug\n")


def test_a_bug_in_the_gate_stops_the_run(cli, monkeypatch, tmp_path):
    def broken(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("gpt2exp.gate.hydra_problems", broken)
    done = cli()
    assert done.status == 1 and "ZeroDivisionError: a bug" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:Callback NoneType")
def test_the_task_checks_again_when_the_gate_was_turned_off(cli):
    done = cli("hydra.callbacks.gate=null", "optimizer.lr=-1")
    assert (done.status, done.problems) == (2, ["optimizer.lr=-1: must not be negative"])


# many runs


def test_a_multirun_runs_every_combination_to_its_end_and_is_not_run_into_again(cli, tiny_run, tmp_path):
    arguments = ("-m", "seed=1,2", "arm=x", *tiny_run, "hydra.sweep.dir=all")
    done = cli(*arguments)
    assert (done.status, done.err) == (0, "")
    assert statuses(tmp_path / "all") == {"seed=1/x": "complete", "seed=2/x": "complete"}
    before = {name: data for name, data in contents(tmp_path).items() if not name.endswith("multirun.yaml")}
    again = cli(*arguments)
    assert (again.status, len(again.problems)) == (3, 1)
    assert before.items() <= contents(tmp_path).items()


def test_seed_and_arm_name_the_directory(cli, monkeypatch, tmp_path):
    folders = record_runs(monkeypatch, seen=lambda cfg, request: str(request.directory.relative_to(tmp_path)))
    assert cli("-m", "seed=3", "optimizer=adamw,sgd", "hydra.sweep.dir=all").status == 0
    assert folders == ["all/seed=3/adamw", "all/seed=3/sgd"]


def test_a_protocol_runs_its_plan(cli, monkeypatch, tmp_path):
    folders = record_runs(monkeypatch, seen=lambda cfg, request: str(request.directory.relative_to(tmp_path)))
    assert cli("-m", "protocol=three_seeds", "arm=x").status == 0
    assert folders == [f"outputs/three_seeds/seed={seed}/x" for seed in (42, 43, 44)]


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (["seed=1,2"], ["seed=1", "seed=2"]),
        (["seed=range(1,3)"], ["seed=1", "seed=2"]),
        (["seed=choice(1,2)"], ["seed=1", "seed=2"]),
        (["optimizer=glob(nano*)"], ["without a sweep"]),
        (["optimizer=glob(*adamw)"], ["optimizer=adamw", "optimizer=nanogpt_adamw"]),
        (["seed=1,2", "arm=x,y"], ["seed=1 arm=x", "seed=1 arm=y", "seed=2 arm=x", "seed=2 arm=y"]),
        (["seed=7", "arm=x,y"], ["arm=x", "arm=y"]),
        ([], ["without a sweep"]),
    ],
    ids=str,
)
def test_a_plan_names_its_runs_by_what_is_swept(overrides, names):
    with hydra_ready():
        hydra = OmegaConf.create({"sweeper": {}, "overrides": {"task": overrides, "hydra": []}})
        assert [name for name, _ in planned_runs(hydra)] == names


def test_the_command_line_replaces_a_protocols_values_in_their_place():
    given = {"sweeper": {"params": {"seed": "1,2"}}, "overrides": {"task": ["arm=x", "seed=3"], "hydra": []}}
    with hydra_ready():
        assert planned_runs(OmegaConf.create(given)) == [("without a sweep", ["seed=3", "arm=x"])]


def record_runs(monkeypatch, seen=lambda cfg, request: cfg.seed, error=None):
    """Replace training; what was seen of the runs that were reached, by default their seeds."""
    reached = []

    def run(cfg, request):
        reached.append(seen(cfg, request))
        if error is not None:
            raise error

    monkeypatch.setattr("gpt2exp.experiment.run", run)
    return reached


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NumericalError("diverged"), 5),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("a bug"), 1),
    ],
    ids=["failure", "interrupt", "bug"],
)
def test_a_run_that_fails_stops_the_runs_behind_it(error, status, cli, monkeypatch):
    seeds = record_runs(monkeypatch, error=error)
    assert cli("-m", "seed=1,2").status == status
    assert seeds == [1]


def test_a_run_that_pauses_stops_the_runs_behind_it(cli, tiny_run, tmp_path):
    done = cli("-m", "seed=1,2", "arm=x", *tiny_run, "stop_after_steps=2", "hydra.sweep.dir=all")
    assert done.status == 4 and len(done.problems) == 1
    assert statuses(tmp_path / "all") == {"seed=1/x": "paused"}


REFUSED_PLANS = {
    "seed=1,x": ["seed=x: expected an integer (run seed=x)"],
    "seed=1,2 optimizer.lr=-1": ["optimizer.lr=-1: must not be negative"],
    "optimizer.lr=-1,-2": [
        "optimizer.lr=-1: must not be negative (run optimizer.lr=-1)",
        "optimizer.lr=-2: must not be negative (run optimizer.lr=-2)",
    ],
    "seed=1,2 +zzz=3": ["unknown key zzz"],
    "seed=1,2 optimizer=sgd optimizer=adamw": ["optimizer is given 2 times: give it once"],
    "seed=interval(1,2)": ["seed=interval(1,2): sweep over values, a,b,c, or range(start,stop)"],
    "seed=range(0)": ["seed=range(0): gives no value to sweep over"],
    "optimizer=glob(zzz*)": ["optimizer=glob(zzz*): gives no value to sweep over"],
    "optimizer.lr=1e-3,2e-3 arm=x": [
        "hydra.sweep.subdir=seed=42/x: the same directory for 2 runs (optimizer.lr=0.001, "
        "optimizer.lr=0.002); give them different arms (arm=...) or put what is swept into hydra.sweep.subdir"
    ],
    "seed=1,1 arm=x": [
        "hydra.sweep.subdir=seed=1/x: the same directory for 2 runs (seed=1, seed=1); give them "
        "different arms (arm=...) or put what is swept into hydra.sweep.subdir"
    ],
    "hydra.sweep.subdir=${nosuch} seed=1,2": ["hydra.sweep.subdir: Interpolation key 'nosuch' not found"],
    "hydra.job.chdir=true seed=1,2": [
        "hydra.job.chdir=true: paths are read from where gpt2exp was started; leave it false"
    ],
}


def multirun_problems(*overrides: str) -> list[str]:
    """What the gate says about a multirun that Hydra could compose."""
    with hydra_ready():
        hydra = GlobalHydra.instance().hydra
        cfg = hydra.compose_config(CONFIG_NAME, list(overrides), run_mode=RunMode.MULTIRUN)
        try:
            check_multirun(cfg)
        except ConfigError as error:
            return error.problems
        return []


@pytest.mark.parametrize("overrides", REFUSED_PLANS)
def test_what_is_wrong_with_a_plan(overrides):
    assert multirun_problems(*overrides.split()) == REFUSED_PLANS[overrides]


@pytest.mark.parametrize("overrides", ["seed=1,x", "seed=1,2 zzz=1", "protocol=three_seed", "seed=range(0)"])
def test_a_multirun_is_refused_as_a_whole_before_its_first_run(overrides, cli, monkeypatch, tmp_path):
    seeds = record_runs(monkeypatch)
    done = cli("-m", *overrides.split())
    assert (done.status, len(done.problems)) == (2, 1)
    assert seeds == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["hydra.sweep.subdir=${hydra:job.num}"],
        ["hydra.sweep.subdir='lr=${optimizer.lr}'"],
        ["hydra.sweep.subdir=${hydra:job.override_dirname}"],
        ["arm=lr-${optimizer.lr}"],
    ],
    ids=str,
)
def test_directories_that_name_what_is_swept_are_accepted(overrides):
    assert multirun_problems("optimizer.lr=1e-3,2e-3", *overrides) == []


def test_directories_by_job_number_are_made(cli, monkeypatch):
    folders = record_runs(monkeypatch, seen=lambda cfg, request: request.directory.name)
    assert cli("-m", "optimizer.lr=1e-3,2e-3", "hydra.sweep.subdir=${hydra:job.num}").status == 0
    assert folders == ["0", "1"]


def test_a_multirun_whose_inputs_are_refused_leaves_no_directory(cli, tmp_path):
    done = cli("-m", "seed=1,2", "data=text", "data.paths=[nowhere.txt]")
    assert (done.status, len(done.problems)) == (6, 1)
    assert list(tmp_path.iterdir()) == []


# real processes


def test_of_two_processes_one_gets_the_directory(tiny_run, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gpt2exp", *tiny_run, "hydra.run.dir=here"]
    processes = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    errors = [process.communicate()[1] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 3]
    assert len("".join(errors).splitlines()) == 1
    assert json.loads((tmp_path / "here/run.json").read_text())["status"] == "complete"
