"""`gpt2exp spectra`: tables, figures and refits of runs; nothing of a run is changed."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

TRACKED = ("tracking.every=2", "tracking.backend=weightwatcher")


@pytest.fixture
def run(cli, tiny_run):
    assert cli(*tiny_run, *TRACKED, "hydra.run.dir=run").status == 0
    return Path("run")


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def test_a_table_a_figure_of_the_asked_matrix_and_a_refit(cli, run):
    before = {file: file.read_bytes() for file in run.glob("spectra/*.*")}
    done = cli("spectra", "run", "--plot", "--refit", "--matrix", "L01_W_K", "--step", "2")
    assert done.status == 0, done.err
    assert [line.split()[0] for line in done.out.splitlines()[1:5]] == ["step", "0", "2", "4"]
    names = {file.name for file in (run / "figures").iterdir()}
    assert {"alpha_by_step.png", "alpha_heatmap.svg", "esd_L01_W_K_step_000002.png"} <= names
    assert {file: file.read_bytes() for file in run.glob("spectra/*.*")} == before
    own, refit = rows(run / "spectra.csv"), rows(run / "spectra_refit/spectra.csv")
    assert {row["estimator_version"] for row in own} == {"weightwatcher 0.7.7"}
    assert {row["estimator_version"] for row in refit} == {"fast 1, stored eigenvalues"}
    for a, b in zip(own, refit, strict=True):
        assert (a["step"], a["matrix"], a["clip_status"]) == (b["step"], b["matrix"], b["clip_status"])
        assert float(b["clip_alpha"]) == pytest.approx(float(a["clip_alpha"]), rel=1e-9)


def test_the_tables_are_the_same_bytes_again(cli, run):
    before = {file: file.read_bytes() for file in run.glob("spectra*.csv")}
    assert len(before) == 3 and cli("spectra", "run").status == 0
    assert {file: file.read_bytes() for file in run.glob("spectra*.csv")} == before


def test_several_runs_below_a_folder(cli, tiny_run):
    for seed in (1, 2):
        tracked = ("tracking.every=4", "tracking.backend=fast")
        assert cli(*tiny_run, *tracked, f"seed={seed}", f"hydra.run.dir=all/{seed}").status == 0
    done = cli("spectra", "all")
    assert done.status == 0 and done.out.count("spectra of 12 matrices at 2 of 2 steps (fast 1)") == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "spectra: the following arguments are required: runs. Usage: gpt2exp spectra RUN"),
        (["nowhere"], "nowhere: no run directory at or below it"),
        (["run", "--plot", "--step", "3"], "step 3 has no spectra; steps that have: 0, 2, 4"),
        (["run", "--plot", "--matrix", "L09_W_Q"], "matrix L09_W_Q is not among the spectra"),
    ],
)
def test_mistakes_are_one_line(cli, request, arguments, said):
    if "run" in arguments:
        request.getfixturevalue("run")
    done = cli("spectra", *arguments)
    assert done.status == 2 and len(done.problems) == 1 and said in done.problems[0]


def test_a_run_without_tracking_says_so(cli, tiny_run):
    assert cli(*tiny_run, "hydra.run.dir=run").status == 0
    assert "no step has any" in cli("spectra", "run").out
    done = cli("spectra", "run", "--plot")
    assert done.status == 2 and "tracking=off" in done.err
