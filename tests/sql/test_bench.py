"""`gpt2exp sql bench`: rows a step from fresh processes, a figure, and failures that stop nothing."""

from __future__ import annotations

import csv
import math

import pytest

from gpt2exp.errors import NumericalError
from gpt2exp.sql_reports import bench, bench_child, bench_command
from gpt2exp.sql_reports.bench import COLUMNS, SIZES, Size, along, figure, summary
from gpt2exp.sql_reports.bench_child import Specification

pytestmark = pytest.mark.sql


def test_a_row_a_step_from_a_process_of_its_own_with_csv_and_figure(cli, tmp_path):
    done = cli("sql", "bench", "--hosts", "duckdb", "--sizes", "2x4x1", "--steps", "4", "--reps", "1", "--csv", "b.csv",
               "optimizer=sgd", "optimizer.max_grad_norm=0")  # fmt: skip
    assert done.status == 0, done.err
    rows = list(csv.DictReader((tmp_path / "b.csv").read_text().splitlines()))
    assert list(rows[0]) == list(COLUMNS)
    assert [(row["step"], row["run"]) for row in rows] == [
        ("1", "rewritten"), ("2", "rewritten"), ("3", "replayed"), ("4", "replayed"),
    ]  # fmt: skip
    for row in rows:
        assert float(row["largest_relative_error"]) <= 1e-14 and 3.5 < float(row["loss"]) < 4.5
        assert float(row["milliseconds"]) > 0 and int(row["operators"]) > 100 and float(row["memory_mb"]) > 1
        assert bool(row["ratio"]) == (row["run"] == "replayed") and row["note"] == ""
    assert len({row["loss"] for row in rows}) == 4
    for suffix in ("png", "svg"):
        assert (tmp_path / f"b.{suffix}").stat().st_size > 1000
    assert "1 of 1 measured" in done.out and done.out.splitlines()[1].startswith("host")


def test_a_size_that_fails_says_why_and_the_rest_goes_on(tmp_path, monkeypatch):
    rows = iter([["this is no row"], [{"step": 1, "run": "rewritten", "loss": 4.0}]])
    monkeypatch.setattr(bench, "child_rows", lambda spec: [{"note": f"skip: {next(rows)}"}])
    specs = [Specification("duckdb", ("optimizer=sgd",), 4, 16, layers, 5, 1) for layers in (1, 2)]
    found = list(bench.measure(specs))
    assert [len(part) for part in found] == [1, 1] and found[1][0]["layers"] == 2
    assert summary(found[0])["note"].startswith("skip: ") and summary(found[0])["milliseconds"] is None


@pytest.mark.parametrize(
    ("body", "note"),
    [
        ("kill -9 $$", "skip: was killed by SIGKILL: out of memory?: (it printed nothing)"),
        ("echo 'gpt2exp: the host is gone' >&2; exit 3", "skip: ended with status 3: the host is gone"),
    ],
)
def test_a_process_that_dies_is_a_note_with_its_last_words(tmp_path, monkeypatch, body, note):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setattr(bench.sys, "executable", str(program))
    assert bench.child_rows(Specification("duckdb", (), 4, 16, 1, 5, 1)) == [{"note": note}]


def test_a_mistake_in_the_child_is_one_line(tmp_path):
    (row,) = bench.child_rows(Specification("duckdb", ("optimizer=nope",), 4, 16, 1, 5, 1))
    assert row["note"].startswith("skip: ended with status 2: ") and "nope" in row["note"]


def test_a_size_that_would_not_end_is_refused_with_an_estimate(cli, monkeypatch):
    monkeypatch.setattr(bench, "child_rows", lambda spec: pytest.fail("measured"))
    done = cli("sql", "bench", "--sizes", "4x16x1,4096x1024x12")
    assert done.status == 3 and len(done.problems) == 1 and "hardware.max_rows" in done.err


def made(host, size, milliseconds, error=1e-15):
    names = {"host": host, "optimizer": "", **size._asdict()}
    numbers = {"milliseconds": milliseconds, "rewritten_milliseconds": 2 * milliseconds, "operators": 9}
    numbers |= {"largest_rows": 5, "memory_mb": 1.0, "loss": 4.0, "largest_relative_error": error}
    runs = ("rewritten", "rewritten", "replayed")
    return [bench.with_ratio({**names, "step": i, "run": run, **numbers}) for i, run in enumerate(runs, 1)]


def test_medians_are_of_replayed_steps_and_the_error_is_the_worst_of_all():
    rows = made("duckdb", Size(), 10.0)
    rows[0].update(milliseconds=1000.0, largest_relative_error=3e-15)
    found = summary(rows)
    assert (found["milliseconds"], found["ratio"], found["largest_relative_error"]) == (10.0, 2.0, 3e-15)
    rows[1].update(largest_relative_error=math.nan)
    assert math.isnan(summary(rows)["largest_relative_error"])


@pytest.mark.parametrize("error", [2e-12, math.nan, math.inf])
def test_wrong_numbers_are_no_benchmark(error):
    bench_command.check([summary(made("duckdb", Size(), 1.0))])
    with pytest.raises(NumericalError, match="duckdb, 4x16x1: largest relative error"):
        bench_command.check([summary(made("duckdb", Size(), 1.0, error))])


def test_the_figure_has_a_panel_a_direction_and_shares_the_usual_size():
    summaries = [
        summary(made(host, size, 10.0 + i)) for i, size in enumerate(SIZES) for host in ("duckdb", "datafusion")
    ]
    assert [row["batch"] for row in along(summaries, "duckdb", "batch")] == [1, 4, 16, 64]
    assert [row["layers"] for row in along(summaries, "datafusion", "layers")] == [1, 2, 3]
    panels = figure(summaries).axes
    assert [panel.get_xlabel() for panel in panels] == ["Rows of a batch", "Context (tokens)", "Layers"]
    assert all(len(panel.lines) == 4 for panel in panels)
    assert list(panels[2].lines[0].get_xdata()) == [1, 2, 3]
    slowest = max(row["rewritten_milliseconds"] for row in summaries)
    assert all(panel.get_ylim()[0] == 0 and panel.get_ylim()[1] >= slowest for panel in panels)


def test_an_error_is_measured_against_the_largest_value_and_nan_is_seen():
    import numpy as np

    zeros, ones = np.zeros(3), np.array([0.0, 1.0, -4.0])
    assert bench_child.relative_error(zeros, zeros) == 0
    assert bench_child.relative_error(ones + np.array([0, 0, 1e-3]), ones) == pytest.approx(2.5e-4)
    broken = {"a": ones, "b": np.array([math.nan, 1, 1])}
    assert math.isnan(bench_child.largest_error(broken, {"a": ones, "b": ones}))


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--hosts", "duckdb,"], "'' is no host"),
        (["--sizes", "4x16"], "'4x16' is no size; expected BxTxL, as in 4x16x1"),
        (["--steps", "0"], "'0' is not a whole number from 1"),
        (["model=gpt2"], "sql bench model=gpt2: only the optimizer can be chosen"),
        (["optimizer=nope"], "nope"),
        (["optimizer.lr=-1"], "optimizer.lr"),
        (["--csv", "nowhere/b.csv"], "cannot be written"),
    ],
)
def test_bad_options_are_refused_before_anything_is_measured(cli, monkeypatch, arguments, found):
    monkeypatch.setattr(bench, "child_rows", lambda spec: pytest.fail("measured"))
    done = cli("sql", "bench", *arguments)
    assert done.status == 2 and len(done.problems) == 1 and found in done.err
