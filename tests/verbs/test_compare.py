"""`gpt2exp compare`: two runs, or a run and a log of llm.c, at equal steps, tokens and wall time."""

from __future__ import annotations

import json
import math

import pytest

from gpt2exp.rundir import RunDirectory, Status
from gpt2exp.verbs.compare import places_of, summary

HEADER = ["val loss A", "val loss B", "A - B", "token error A", "token error B", "A - B"]


def row(step, loss, tokens_per_step=100):
    tokens, error = step * tokens_per_step, (loss or 0.0) / 10
    return {"step": step, "tokens": tokens, "val_loss": loss, "token_error": error, "target_tokens": 8}


@pytest.fixture
def make_run(tmp_path):
    """A run directory with these validation losses by step; each step takes `seconds`."""

    def make(name, losses, seconds=1.0, timed=True, tokens_per_step=100, status=Status.complete, **training):
        science = {"schedule": {"num_steps": 8}, "optimizer": {"kind": name, "lr": 0.1}, **training}
        record = {
            "arm": name, "seed": 7, "training": science, "measurement": {"evaluation": {"every": 2}},
            "execution": {"device": "cpu"},
        }  # fmt: skip
        run = RunDirectory.claim(tmp_path / name, record, "seed: 7\n")
        run.begin_attempt({})
        run.append("evaluations", [row(step, loss, tokens_per_step) for step, loss in losses.items()])
        run.append("metrics", [{"step": step, "tokens": 0, "loss": 1.0} for step in range(1, 9)])
        if timed:
            run.append("timing", [{"step": step, "attempt": 1, "update": seconds} for step in range(1, 9)])
        run.set_status(status)
        run.close()

    return make


def tables(text):
    """{axis: rows of cells}, without the header; a line instead of a table comes as no rows."""
    found = {}
    for block in text.split("\n\n")[1:]:
        title, *lines = block.splitlines()
        cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
        assert not cells or cells[0][1:] == HEADER
        found[title] = cells[1:]
    return found


A = {0: 6.0, 2: 5.0, 4: 4.0, 6: 3.5, 8: 3.0}
B = {0: 6.0, 2: 4.5, 4: 4.25, 6: 3.0, 8: 2.0}


def test_two_runs_on_the_same_grid(make_run, cli):
    make_run("a", A)
    make_run("b", B, seconds=2.0)
    done = cli("compare", "a", "b")
    found = tables(done.out)
    assert (done.status, done.err) == (0, "")
    assert list(found) == ["At equal steps", "At equal tokens", "At equal wall time (~ interpolated)"]
    assert found["At equal steps"] == [
        ["2", "5.0000", "4.5000", "+0.5000", "0.5000", "0.4500", "+0.0500"],
        ["4", "4.0000", "4.2500", "-0.2500", "0.4000", "0.4250", "-0.0250"],
        ["6", "3.5000", "3.0000", "+0.5000", "0.3500", "0.3000", "+0.0500"],
        ["8", "3.0000", "2.0000", "+1.0000", "0.3000", "0.2000", "+0.1000"],
    ]
    assert [cells[0] for cells in found["At equal tokens"]] == ["200", "400", "600", "800"]
    assert [cells[1:] for cells in found["At equal tokens"]] == [cells[1:] for cells in found["At equal steps"]]


def test_wall_time_is_interpolated_up_to_the_end_of_the_faster_run(make_run, cli):
    make_run("a", A)
    make_run("b", B, seconds=2.0)
    rows = tables(cli("compare", "a", "b").out)["At equal wall time (~ interpolated)"]
    # a: 2, 4, 6, 8 s; b: 4, 8, 12, 16 s; so from 4 s to 8 s
    assert [cells[:4] for cells in rows] == [
        ["~ 4.00 s", "4.0000", "4.5000", "-0.5000"],
        ["~ 6.00 s", "3.5000", "4.3750", "-0.8750"],
        ["~ 8.00 s", "3.0000", "4.2500", "-1.2500"],
    ]


def test_what_they_are_and_what_differs_stands_first(make_run, cli):
    make_run("a", A)
    make_run("b", B, status=Status.paused, seed=7)
    lines = cli("compare", "a", "b").out.splitlines()
    assert lines[:7] == [
        "A  a: a, seed 7, complete, step 8 of 8",
        "B  b: b, seed 7, paused, step 8 of 8",
        "training differs: optimizer.kind a -> b, seed - -> 7",
        "measurement is the same",
        "execution is the same",
        "gpt2exp diff a b lists every key",
        "Two runs side by side: nothing is pooled, and how much of a difference is chance they cannot tell.",
    ]


def test_several_keys_of_a_section_are_counted():
    found = [("optimizer.kind", "a", "b"), ("optimizer.lr", 1, 2), ("seed", 1, 2)]
    assert summary(found) == "optimizer (2 keys), seed 1 -> 2"


def test_a_run_and_itself(make_run, cli):
    make_run("a", A)
    out = cli("compare", "a", "a").out
    assert "training is the same" in out and "lists every key" not in out
    assert {cells[3] for rows in tables(out).values() for cells in rows} == {"+0.0000"}


def test_other_grids_are_compared_where_they_meet(make_run, cli):
    make_run("a", A)
    make_run("b", {0: 6.0, 3: 5.0, 6: 3.0})
    assert [cells[0] for cells in tables(cli("compare", "a", "b").out)["At equal steps"]] == ["6"]


def test_grids_that_never_meet_are_interpolated_and_marked(make_run, cli):
    make_run("a", {0: 6.0, 2: 5.0, 4: 4.0})
    make_run("b", {0: 6.0, 3: 3.0, 5: 2.0})
    rows = tables(cli("compare", "a", "b").out)["At equal steps (~ interpolated)"]
    assert [cells[:4] for cells in rows] == [
        ["~ 1", "5.5000", "5.0000", "+0.5000"],
        ["~ 2", "5.0000", "4.0000", "+1.0000"],
        ["~ 3", "4.5000", "3.0000", "+1.5000"],
        ["~ 4", "4.0000", "2.5000", "+1.5000"],
    ]


def test_other_tokens_per_step_meet_at_other_steps(make_run, cli):
    make_run("a", A)
    make_run("b", B, tokens_per_step=200)
    rows = tables(cli("compare", "a", "b").out)["At equal tokens"]
    assert [cells[:3] for cells in rows] == [["400", "4.0000", "4.5000"], ["800", "3.0000", "4.2500"]]


def test_a_loss_that_is_not_finite_is_a_dash(make_run, cli):
    make_run("a", A)
    make_run("b", {**B, 4: None})
    assert tables(cli("compare", "a", "b").out)["At equal steps"][1][:4] == ["4", "4.0000", "-", "-"]


def test_a_run_without_times(make_run, cli):
    make_run("a", A)
    make_run("b", B, timed=False)
    assert "At equal wall time: nothing to show, b records none" in cli("compare", "a", "b").out


def test_a_log_of_llmc_on_either_side(make_run, cli, tmp_path):
    make_run("a", A, tokens_per_step=524_288)
    (tmp_path / "main.log").write_text("s:0 tel:6.5\ns:0 trl:6.4 lr:0.1 norm:1.0\ns:4 tel:4.5\ns:8 tel:3.25\ns:9 te")
    done = cli("compare", "a", "main.log")
    found = tables(done.out)
    assert done.status == 0 and "B  main.log: llm.c log main.log; Tokens are step x 524,288" in done.out
    assert "A log of llm.c records no identity" in done.out and "training" not in done.out
    assert found["At equal steps"] == [
        ["4", "4.0000", "4.5000", "-0.5000", "0.4000", "-", "-"],
        ["8", "3.0000", "3.2500", "-0.2500", "0.3000", "-", "-"],
    ]
    assert [cells[0] for cells in found["At equal tokens"]] == ["2,097,152", "4,194,304"]
    assert "At equal wall time: nothing to show, main.log records none" in done.out
    assert tables(cli("compare", "main.log", "a").out)["At equal steps"][0][1:4] == ["4.5000", "4.0000", "+0.5000"]


def test_the_points_are_near_the_quarters_of_the_way_to_the_last_common_one():
    from gpt2exp.report.curves import Series

    def series(steps):
        return Series(tuple(steps), tuple(steps), (math.nan,) * len(steps), (1.0,) * len(steps))

    many, short = series(range(0, 1001, 10)), series(range(0, 805, 20))
    assert places_of(many, short, "step") == ([200, 400, 600, 800], False)
    assert places_of(series([0, 1, 90, 100]), series([0, 1, 90, 100]), "step").at == [1, 90, 100]
    assert places_of(series([0, 10]), series([20, 30]), "step") == ([], True)
    assert places_of(series([0, 10]), series([0]), "step") == ([], True)
    assert places_of(many, short, "seconds") == ([], True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "nowhere: neither a run directory nor a main.log of llm.c"),
        (".", ".: neither a run directory nor a main.log of llm.c; runs lie below it, for example a"),
        ("none", "none: no evaluation in it (evaluation=off, or it stopped before the first)"),
    ],
)
def test_a_side_that_is_no_run_is_refused(name, message, make_run, cli):
    make_run("a", A)
    make_run("none", {})
    done = cli("compare", "a", name)
    assert (done.status, done.problems, done.out) == (2, [message], "")


def test_a_damaged_side_is_one_line(make_run, cli, tmp_path):
    make_run("a", A)
    make_run("b", B)
    (tmp_path / "b/evaluations.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    (tmp_path / "x.log").write_text("epoch 1\n")
    log = cli("compare", "a", "x.log")
    assert log.status == 6 and len(log.problems) == 1 and "x.log, line 1" in log.err
    run = cli("compare", "a", "b")
    assert run.status == 7 and len(run.problems) == 1 and run.out == ""
    (tmp_path / "b/run.json").write_text('{"arm":"b","seed":7,"status":"x","training":{"schedule":{"num_steps":8}}}')
    assert cli("compare", "a", "b").problems == ["b: run.json has no measurement: damaged, or of another version"]


def test_two_sides_are_needed(cli):
    done = cli("compare", "a")
    assert (done.status, done.problems) == (2, ["found 1 arguments. Usage: gpt2exp compare A B"])


def test_two_real_runs(cli, tiny_run):
    for arm in ("adamw", "muonclip"):
        assert cli(*tiny_run, f"optimizer={arm}", f"hydra.run.dir={arm}").status == 0
    done = cli("compare", "muonclip", "adamw")
    assert done.status == 0 and "execution is the same" in done.out
    assert [cells[0] for cells in tables(done.out)["At equal steps"]] == ["2", "4"]
    assert [cells[0] for cells in tables(done.out)["At equal tokens"]] == ["256", "512"]
