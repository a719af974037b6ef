"""Attention and its gradients as queries: right, linear in the batch, and what cannot be differentiated says so."""

from __future__ import annotations

import csv
import math
import sys

import numpy as np
import pytest

from gpt2exp.engines.sql.statement import statement
from gpt2exp.errors import RefusedError
from gpt2exp.sql_reports import attention
from gpt2exp.sql_reports.attention import Size, filled, gradient_steps, measure, passes, random_values, reference
from gpt2exp.sql_reports.spellings import CONTROL, SPELLINGS, scores, with_groups

pytestmark = pytest.mark.sql

HOSTS = ("duckdb", "datafusion")
SIZE = Size(2, 2, 5, 3)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("host", HOSTS)
def test_output_and_gradients_equal_torch(host, spelling):
    rows = list(measure([host], [SIZE], 1, {spelling: SPELLINGS[spelling]}))
    assert [(row.host, row.spelling, row.run, row.note) for row in rows] == [
        (host, spelling, "forward", ""),
        (host, spelling, "gradient", ""),
    ]
    assert all(0 <= row.largest_relative_error <= 1e-14 and not row.failed for row in rows)
    assert all(row.milliseconds > 0 and row.operators > 10 for row in rows)


def rows_of(file):
    return list(csv.DictReader(file.read_text().splitlines()))


def softmax_attention(values, kernel):
    """Row by row, from the definition; shares nothing with the code under test."""
    q, k, v = (values[name] for name in "qkv")
    out = np.zeros_like(q)
    for b, h, i in np.ndindex(q.shape[:3]):
        visible = slice(None) if kernel else slice(i + 1)
        keys, query = k[b, h, visible], q[b, h, i]
        x = -((query - keys) ** 2).sum(1) / 2 if kernel else keys @ query
        weights = np.exp(x / math.sqrt(q.shape[3]))
        out[b, h, i] = weights @ v[b, h, visible] / weights.sum()
    return out


@pytest.mark.parametrize("kernel", [False, True])
def test_the_reference_is_attention_by_definition_and_its_gradients_are_slopes(kernel):
    values = random_values(SIZE)
    expected = reference(values, SIZE.width, kernel)
    np.testing.assert_allclose(expected["output"], softmax_attention(values, kernel).reshape(-1), rtol=1e-13)
    for name in "qkv":
        place, step = (1, 0, 3, 2), 1e-6
        sides = []
        for sign in (1, -1):
            moved = {n: a.copy() for n, a in values.items()}
            moved[name][place] += sign * step
            sides.append(0.5 * (softmax_attention(moved, kernel) ** 2).sum())
        slope = (sides[0] - sides[1]) / (2 * step)
        assert expected[name].reshape(SIZE)[place] == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_operator_puts_out_more_rows_than_grow_with_the_batch(host, spelling):
    def largest(batch):
        size = Size(batch, 2, 6, 2)
        with filled(host, random_values(size)) as database:
            return passes(SPELLINGS[spelling](size.width), 1)[1].size(database).largest_rows

    pairs = 6 * 6 if spelling == CONTROL else 6 * 7 // 2
    one = largest(1)
    assert 2 * pairs * 2 <= one <= 2 * pairs * 3
    assert [largest(batch) for batch in (4, 16)] == [4 * one, 16 * one]


@pytest.mark.parametrize("host", HOSTS)
def test_the_plain_spelling_of_a_sum_is_the_trap_that_the_count_sees(host):
    """Without `+ 0e0` the gradients of attention's sums lose batch and head: the measurement must show it."""

    def plain(width):
        return tuple(
            statement(s.name, s.comment, s.sql.replace(" + 0e0", "")) for s in with_groups(width)
        )  # fmt: skip

    def largest(batch, spelling):
        size = Size(batch, 2, 6, 2)
        with filled(host, random_values(size)) as database:
            return passes(spelling(size.width), 1)[1].size(database).largest_rows

    assert largest(8, plain) == 64 * largest(1, plain) > 10 * largest(8, with_groups)


def test_masked_pairs_are_absent_rows():
    size = Size(1, 1, 7, 2)
    with filled("duckdb", random_values(size)) as database:
        found = database.fetch("SELECT COUNT(*) AS n, SUM(CASE WHEN j > i THEN 1 ELSE 0 END) AS masked FROM scores",
                               [scores(size.width)])  # fmt: skip
    assert (int(found["n"][0]), int(found["masked"][0])) == (7 * 8 // 2, 0)


def rounded(width):
    """Attention through a function that has no derivative."""
    return tuple(
        statement(s.name, s.comment, s.sql.replace("exp(s.x - m.x)", "round(exp(s.x - m.x) * 1e300) / 1e300"))
        for s in with_groups(width)
    )


@pytest.mark.parametrize("host", HOSTS)
def test_what_cannot_be_differentiated_keeps_its_forward_row_and_the_rest_goes_on(host):
    spellings = {"rounded": rounded, "GROUP BY": with_groups}
    bad_forward, bad, good_forward, good = measure([host], [SIZE], 1, spellings)
    assert (bad_forward.note, bad_forward.failed, bad.milliseconds, bad.failed) == ("", False, None, False)
    assert bad.note.startswith(f"skip: {host} failed at table q: ") and "`round`" in bad.note
    assert bad_forward.milliseconds > 0 and good_forward.note == good.note == "" and good.milliseconds > 0


def test_what_runs_once_and_then_fails_is_no_skip(monkeypatch):
    def broken(host, steps, reps):
        raise RefusedError("the second time")

    monkeypatch.setattr(attention, "timed_gradients", broken)
    with pytest.raises(RefusedError, match="the second time"):
        list(measure(["duckdb"], [SIZE], 1, {"GROUP BY": with_groups}))


def test_the_three_gradients_share_one_backward_pass():
    statements = with_groups(SIZE.width)
    steps = gradient_steps(statements)
    assert [step.statement.name for step in steps] == ["q", "k", "v"]
    with filled("duckdb", random_values(SIZE)) as database:
        together = passes(statements, 1)[1].size(database).operators
    alone = []
    for step in steps:
        with filled("duckdb", random_values(SIZE)) as database:
            alone.append(attention.gradient_size(database, tuple("qkv"), [step]).operators)
    assert together < sum(alone)


def test_the_command_prints_and_writes_every_row(cli, tmp_path):
    done = cli("sql", "attention", "--hosts", "duckdb", "--sizes", "1x1x4x2,2x1x4x2", "--reps", "1", "--csv", "a.csv")
    assert done.status == 0, done.err
    rows = rows_of(tmp_path / "a.csv")
    assert len(rows) == 2 * len(SPELLINGS) * 2 == len(done.out.splitlines()) - 2
    assert list(rows[0]) == [
        "host", "spelling", "pass", "B", "H", "T", "D", "milliseconds", "largest_relative_error", "largest_rows",
        "operators", "note",
    ]  # fmt: skip
    assert {(row["B"], row["H"], row["T"], row["D"]) for row in rows} == {("1", "1", "4", "2"), ("2", "1", "4", "2")}


@pytest.mark.parametrize("factor", [1 + 1e-13, math.nan])
def test_an_error_over_the_tolerance_exits_5_after_everything_was_written(cli, tmp_path, monkeypatch, factor):
    honest = attention.reference

    def wrong(values, width, kernel):
        expected = honest(values, width, kernel)
        return expected if kernel else {**expected, "k": expected["k"] * factor}

    monkeypatch.setattr(attention, "reference", wrong)
    done = cli("sql", "attention", "--hosts", "duckdb", "--sizes", "1x1x4x2", "--reps", "1", "--csv", "a.csv")
    assert done.status == 5 and len(rows_of(tmp_path / "a.csv")) == 6
    (line,) = done.problems
    assert line.startswith("2 of 6 rows are out of tolerance; duckdb, window functions, gradient, 1x1x4x2: found ")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--hosts", "sqlite"], "'sqlite' is no host; there is duckdb and datafusion"),
        (["--sizes", "4x4x16"], "'4x4x16' is no size; expected BxHxTxD"),
        (["--sizes", "4x0x16x4"], "'0' is not a whole number from 1"),
        (["--sizes", "64x12x1024x64"], "queries and keys join to 51,539,607,552 rows; expected at most 50,000,000"),
        (["--reps", "0"], "'0' is not a whole number from 1"),
        (["--csv", "nowhere/a.csv"], "'nowhere/a.csv' cannot be written"),
        (["--rep", "1"], "Usage: gpt2exp sql attention"),
        (["more"], "Usage: gpt2exp sql attention"),
    ],
)
def test_bad_options_are_one_line(cli, arguments, found):
    done = cli("sql", "attention", *arguments)
    assert done.status == 2 and len(done.problems) == 1 and found in done.err and done.out == ""


def test_a_missing_extra_is_not_a_skip(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "ddxdb", None)
    done = cli("sql", "attention", "--sizes", "1x1x4x2", "--reps", "1")
    assert done.status == 3 and "pip install 'gpt2exp[sql]'" in done.err and len(done.problems) == 1
