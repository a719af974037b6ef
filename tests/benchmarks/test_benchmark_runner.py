"""The runner's arithmetic and its command line; nothing here depends on how long anything takes."""

from __future__ import annotations

import json
import os

import pytest
import run
from benchmarking import Benchmark, Measurement, Reach, Result, alternate, seconds

from gpt2exp.errors import DataError


def result(ours, peer, reach, same=None) -> Result:
    return Result("row", Benchmark("what", "peer", reach, lambda settings: None), Measurement(ours, peer, same))


def test_a_ratio_is_the_median_of_each_rounds_own():
    """The machine may be slow in one round: its two sides are slow together."""
    row = result([1.0, 10.0, 1.0], [2.0, 21.0, 2.0], Reach(1.0))
    assert row.ratios == [10 / 21, 0.5, 0.5] and row.ratio == 0.5 and row.holds
    assert result([1.0], [1.0], Reach(1.0)).holds and not result([1.1], [1.0], Reach(1.0)).holds


def test_a_speed_up_counts_the_other_way_round():
    assert result([1.0], [1.5], Reach(1.5, speed_up=True)).holds
    assert not result([1.0], [1.4], Reach(1.5, speed_up=True)).holds


def test_faster_with_other_results_does_not_hold():
    assert not result([1.0], [2.0], Reach(1.0), same=False).holds
    assert result([1.0], [2.0], Reach(1.0), same=True).holds


def test_sides_take_turns_after_one_warm_up():
    calls = []
    taken = alternate(lambda: calls.append("A"), lambda: calls.append("B"), rounds=3)
    assert "".join(calls) == "AB" + "AB" + "BA" + "AB"
    assert len(taken.ours) == len(taken.peer) == 3


@pytest.mark.parametrize(("value", "text"), [(12.3456, "12.35 s"), (0.0123, "12.3 ms"), (4.5e-5, "45 us")])
def test_durations_have_fitting_units(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize("name", run.row_names())
def test_every_file_of_rows_defines_a_row(name):
    row = run.load(name)
    assert isinstance(row, Benchmark) and row.what and row.peer and callable(row.measure)


def row_file(folder, body) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(
        "from benchmarking import Benchmark, Measurement, Reach\n"
        "from gpt2exp.errors import DataError\n"
        f"def measure(settings):\n    {body}\n"
        "ROW = Benchmark('what', 'peer', Reach(1.0), measure)\n",
        encoding="utf-8",
    )


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "ROWS", tmp_path / "rows")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path / "rows"


def test_a_file_is_all_a_row_needs(rows, tmp_path, capsys):
    row_file(rows, "return Measurement([0.5], [1.0], True, ('a note',))")
    assert run.main(["mine", "--quick", "--json", str(tmp_path / "out.json")]) == 0
    out = capsys.readouterr().out
    assert "mine      500 ms         1 s  0.500" in out and "yes" in out and "a note" in out
    record = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert record["rows"][0]["ratio"] == 0.5 and record["rows"][0]["holds"] is True
    assert record["head"]["threads"].startswith("1,") and record["head"]["mode"] == "quick" and record["head"]["torch"]
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_a_slow_row_is_reported_not_failed(rows, capsys):
    row_file(rows, "return Measurement([2.0], [1.0])")
    assert run.main([]) == 0
    assert " no\n" in capsys.readouterr().out


def test_a_row_that_cannot_run_says_why(rows, capsys):
    row_file(rows, "raise DataError('no vocabulary')")
    assert run.main([]) == 1
    assert "could not run: no vocabulary" in capsys.readouterr().out
    assert DataError.exit_code == 6


def test_an_unknown_row_is_answered_with_the_nearest(rows, capsys):
    row_file(rows, "pass")
    with pytest.raises(SystemExit) as exit_:
        run.main(["mien"])
    assert exit_.value.code == 2 and "did you mean mine?" in capsys.readouterr().err


def test_the_spread_leaves_out_the_outer_twentieth():
    few, many = (result([float(i) for i in range(1, n + 1)], [1.0] * n, Reach(1.0)) for n in (5, 40))
    assert few.spread == (1.0, 5.0) and many.spread == (3.0, 38.0)
