"""Curves: values by hand, gaps, equal points, llm.c's logs, and the published reference."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from gpt2exp.errors import DataError, StorageError
from gpt2exp.report import curves
from gpt2exp.report.curves import Series
from gpt2exp.report.findings import CurvePoint, Foreign
from gpt2exp.report.runs import Run

GPT2 = {
    "source": "llmc",
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "block_size": 1024,
    "vocab_size": 50257,
    "bias": True,
}
TRAIN_1 = "771fa4a99b9fe0946ffb6e848b4ba5c6a9b0fe87860ebf03bc2c1c7e45f8178e"
VAL_0 = "5b95c8e0966f0861685b307b23dc5ae42b228ef74b28cb499784ae021f201640"


def make_run(
    losses, *, seed=1, arm="a", status="complete", seconds=1.0, tracking=(), metrics=(), tokens_per_step=10, **record
):
    """A run with a validation loss (None: not finite) and, as token error, a tenth of it by step."""
    rows = [
        {"step": s, "tokens": s * tokens_per_step, "val_loss": y, "token_error": (y or 0) / 10, "target_tokens": 64}
        for s, y in losses.items()
    ]
    steps = list(losses)
    spent = [seconds * max(s - before, 0.5) for before, s in zip([0, *steps[:-1]], steps, strict=True)] if steps else []
    timing = [{"step": s, "attempt": 1, "update": time} for s, time in zip(steps, spent, strict=True)]
    training = {
        "model": record.pop("model", {}), "schedule": {"num_steps": max(losses, default=0)},
        "data": {"order": "exact_sequential"},
    }  # fmt: skip
    record = {
        "arm": arm, "seed": seed, "status": status, "training": training,
        "execution": {"device_model": "TPU v5e", "devices": 8}, "measurement": {"evaluation": {"tokens": 640}},
        **record,
    }  # fmt: skip
    return Run(Path(f"{arm}_{seed}"), record, {}, list(metrics), rows, list(tracking), timing)


def same(found, expected):
    return [(math.isnan(a) and math.isnan(b)) or a == pytest.approx(b) for a, b in zip(found, expected, strict=True)]


def log(tmp_path, text):
    path = tmp_path / "main.log"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_series_lies_along_steps_tokens_and_seconds():
    series = curves.val_loss(make_run({0: 4.0, 2: 3.0, 6: 2.0}, seconds=2.0))
    assert series.along("step") == [(0, 4.0), (2, 3.0), (6, 2.0)]
    assert series.along("tokens") == [(0, 4.0), (20, 3.0), (60, 2.0)]
    assert series.along("seconds") == [(1.0, 4.0), (5.0, 3.0), (13.0, 2.0)]


def test_between_points_a_series_is_straight_and_beyond_them_unknown():
    series = curves.val_loss(make_run({2: 3.0, 6: 2.0}))
    assert [series.at("step", x) for x in (2, 3, 6)] == [3.0, 2.75, 2.0]
    assert all(math.isnan(series.at("step", x)) for x in (1.9, 6.1))


def test_a_loss_that_was_not_finite_is_a_gap_and_nothing_is_drawn_across_it():
    series = curves.val_loss(make_run({0: 4.0, 2: None, 4: 2.0}))
    assert same(series.values, (4.0, math.nan, 2.0)) == [True] * 3
    assert all(math.isnan(series.at("step", x)) for x in (1, 2, 3))


def test_a_time_that_is_not_recorded_is_left_out_of_the_time_axis_only():
    run = make_run({0: 4.0, 2: 3.0})
    run.timing[:] = run.timing[1:]
    series = curves.val_loss(run)
    assert len(series.along("seconds")) == 1 and len(series.along("tokens")) == 2


def test_a_run_without_evaluations_is_an_empty_series():
    assert len(curves.val_loss(make_run({}))) == 0 and curves.val_loss(make_run({})).along("step") == []


def test_rows_out_of_order_are_damage():
    run = make_run({0: 4.0, 2: 3.0})
    run.evaluations.append(dict(run.evaluations[0]))
    with pytest.raises(StorageError, match="val_loss of step 0 follows step 2"):
        curves.val_loss(run)


@pytest.mark.parametrize("quantity", [curves.val_loss, curves.token_error])
def test_a_row_that_lacks_something_is_damage(quantity):
    run = make_run({0: 4.0, 2: 3.0})
    run.evaluations[1].pop("target_tokens" if quantity is curves.token_error else "val_loss")
    with pytest.raises(StorageError, match="a_1: a row is damaged, or of another version"):
        quantity(run)


def test_token_errors_of_the_probe_join_only_where_they_are_about_as_many_tokens():
    probe = {"step": 1, "tokens": 10, "token_error": 0.5, "target_tokens": 64}
    assert curves.token_error(make_run({0: 4.0, 2: 3.0}, tracking=[probe])).values == (0.4, 0.5, 0.3)
    other = {**probe, "target_tokens": 32}
    assert curves.token_error(make_run({0: 4.0, 2: 3.0}, tracking=[other])).values == (0.4, 0.3)
    assert curves.token_error(make_run({}, tracking=[other])).values == (0.5,)


def test_the_training_loss_is_smoothed_from_its_first_value_and_skips_gaps():
    rows = [{"step": s, "tokens": s, "loss": y} for s, y in ((1, 8.0), (2, 4.0), (3, None), (4, 2.0))]
    run = make_run({}, metrics=rows)
    assert all(same(curves.train_loss(run, 0.5).values, (8.0, 6.0, math.nan, 4.0)))
    assert all(same(curves.train_loss(run, 0.0).values, (8.0, 4.0, math.nan, 2.0)))


def test_a_band_is_lowest_mean_and_highest_at_steps_that_all_complete_seeds_have():
    runs = [
        make_run({0: 4.0, 2: 3.0, 4: 2.0}, seed=1), make_run({0: 5.0, 4: 2.5}, seed=2),
        make_run({0: 6.0, 2: 9.0, 4: 3.9}, seed=3), make_run({0: 9.0}, seed=4, status="stopped"),
    ]  # fmt: skip
    found = curves.band(runs, curves.val_loss, "tokens")
    assert found is not None and found.n == 3
    assert found.at == (0, 40) and found.low == (4.0, 2.0) and found.high == (6.0, 3.9)
    assert found.mean == pytest.approx((5.0, 2.8))


def test_one_seed_has_no_band():
    runs = [make_run({0: 4.0, 2: 3.0}), make_run({0: 4.0}, seed=2, status="stopped")]
    assert curves.band(runs, curves.val_loss, "step") is None and curves.band([], curves.val_loss, "step") is None


def test_a_band_is_never_over_arms_nor_over_one_seed_twice():
    with pytest.raises(AssertionError, match="never over arms"):
        curves.band([make_run({0: 1.0}), make_run({0: 1.0}, seed=2, arm="b")], curves.val_loss, "step")
    with pytest.raises(AssertionError, match="one run each"):
        curves.band([make_run({0: 1.0}), make_run({0: 1.0})], curves.val_loss, "step")


def test_a_seed_that_diverged_leaves_a_gap_in_the_band_instead_of_flattering_it():
    runs = [make_run({0: 4.0, 2: 3.0, 4: 2.0}), make_run({0: 4.0, 2: None, 4: 2.0}, seed=2)]
    found = curves.band(runs, curves.val_loss, "step")
    assert found is not None and all(same(found.mean, (4.0, math.nan, 2.0))) and all(same(found.low, found.high))


def test_along_time_runs_are_interpolated_inside_their_common_span():
    slow, fast = make_run({2: 4.0, 4: 2.0}, seconds=2.0), make_run({2: 3.0, 4: 1.0}, seed=2)
    found = curves.band([slow, fast], curves.val_loss, "seconds")
    assert found is not None and found.at == (4.0,)  # slow: 4 s and 8 s; fast: 2 s and 4 s
    assert (found.low, found.high) == ((1.0,), (4.0,))


def test_matches_are_the_points_that_both_have():
    a, b = curves.val_loss(make_run({0: 5.0, 2: 4.0, 4: 3.0})), curves.val_loss(make_run({0: 5.5, 1: 1.0, 4: 2.0}))
    found = curves.matches(a, b, "step")
    assert [(m.at, m.difference, m.interpolated) for m in found] == [(0, -0.5, False), (4, 1.0, False)]


def test_without_a_shared_point_beyond_0_the_other_curve_is_interpolated_and_never_extrapolated():
    run = make_run({0: 5.0, 2: 4.0, 9: 3.0})
    curve = Foreign("f", "", "", (CurvePoint(0, 0, 5.0), CurvePoint(1, 80, 1.0)))
    found = curves.at_tokens(run, curve)
    assert [tuple(m) for m in found] == [(0, 5.0, 5.0, False), (20, 4.0, 4.0, True)]


def test_the_published_curve():
    curve = curves.reference_curve()
    loss = {point.step: point.val_loss for point in curve.points}
    assert len(loss) == 80 and [loss[step] for step in (0, 250, 1000, 10000, 19560)] == [
        11.0092, 6.1710, 4.3170, 3.3924, 3.2722,
    ]  # fmt: skip
    assert all(point.tokens == point.step * 524_288 for point in curve.points)
    assert curve.points[-1].tokens == 10_255_073_280 and all(point.seconds is None for point in curve.points)
    assert "AdamW" in curve.optimizer and "AdamW (n=1)" in curve.label
    assert curve.source == "KellerJordan/modded-nanogpt, records/track_1_short/2024-10-13_llmc/main.log"


def test_a_run_beside_the_published_curve_at_equal_tokens():
    run = make_run({0: 11.0, 250: 6.0, 300: 5.9, 500: 5.5}, tokens_per_step=524_288)
    found = curves.at_tokens(run, curves.reference_curve())
    assert [m.at for m in found] == [0, 131_072_000, 262_144_000]
    assert [round(m.difference, 4) for m in found] == [-0.0092, -0.1710, 0.1257]


SHARDS = {"kind": "shards", "train": [{"sha256": TRAIN_1}], "val": [{"sha256": VAL_0}]}


@pytest.mark.parametrize(
    ("model", "corpus", "expected"),
    [
        (GPT2, {"kind": "fineweb10B"}, True),
        (GPT2, {"kind": "shards", "name": "fineweb10B"}, True),
        (GPT2, SHARDS, True),
        (GPT2, {**SHARDS, "val": [{"sha256": "0"}]}, False),
        (GPT2, {**SHARDS, "train": []}, False),
        (GPT2, {"kind": "fineweb_edu10B"}, False),
        (GPT2, None, False),
        ({**GPT2, "n_layer": 24, "n_embd": 1024}, {"kind": "fineweb10B"}, False),
        ({**GPT2, "bias": False}, {"kind": "fineweb10B"}, False),
    ],
)
def test_the_published_curve_is_for_gpt2_124m_on_fineweb10b_only(model, corpus, expected):
    assert curves.applies(make_run({0: 1.0}, model=model, corpus=corpus)) is expected


def test_what_must_be_said_beside_the_published_curve():
    substitution, single, setting, computation = curves.reference_sentences([make_run({0: 1.0}), make_run({0: 1.0})])
    assert "MuonClip" in substitution and "substitution" in substitution and "not a published record" in substitution
    assert "n=1" in single
    assert "8 NVIDIA H100" in setting and "8 x TPU v5e" in setting and "exact_sequential" in setting
    assert "10,485,760" in computation and "first 640 validation tokens" in computation and "524,288" in computation


def test_a_log_of_llmc(tmp_path):
    text = "s:0 tel:11.0092\ns:0 trl:11.0091 lr:0.000001 norm:15.37\ns:0 eval:0.2464\ns:250 tel:6.1710\n"
    found = curves.read_llmc_log(log(tmp_path, text))
    assert found.points == (CurvePoint(0, 0, 11.0092), CurvePoint(250, 131_072_000, 6.1710))
    assert found.label == "llm.c log main.log" and "not recorded" in found.optimizer
    assert found.notes == ("Tokens are step x 524,288: the log does not record them, nor any time.",)
    assert curves.read_llmc_log(log(tmp_path, text), 100).points[1].tokens == 25_000


def test_a_log_with_windows_line_ends_and_a_blank_line(tmp_path):
    assert len(curves.read_llmc_log(log(tmp_path, "s:0 tel:11.0\r\n\r\ns:1 tel:10.0\r\n")).points) == 2


@pytest.mark.parametrize("rest", ["s:500 tel:5.", "s:50", "s", "s:500 tel:5.3743"])
def test_a_last_line_that_was_cut_is_left_out_and_that_is_said(rest, tmp_path):
    found = curves.read_llmc_log(log(tmp_path, f"s:0 tel:11.0\ns:250 tel:6.0\n{rest}"))
    assert [point.step for point in found.points] == [0, 250]
    assert "The last line has no end, so it was left out." in found.notes


def test_a_resumed_log_counts_the_later_line(tmp_path):
    found = curves.read_llmc_log(log(tmp_path, "s:0 tel:9.0\ns:2 tel:8.0\ns:4 tel:7.0\ns:2 tel:6.5\ns:4 tel:6.0\n"))
    assert [(p.step, p.val_loss) for p in found.points] == [(0, 9.0), (2, 6.5), (4, 6.0)]
    assert any(note.startswith("2 evaluations are in the log more than once") for note in found.notes)


@pytest.mark.parametrize("text", ["nan", "-nan", "inf"])
def test_a_log_of_a_run_that_diverged_has_gaps(text, tmp_path):
    found = curves.read_llmc_log(log(tmp_path, f"s:0 tel:9.0\ns:1 tel:{text}\n"))
    assert math.isnan(found.points[1].val_loss) and math.isnan(curves.foreign_series(found).values[1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no evaluation in it"),
        ("s:0 tel:11.0", "no evaluation in it"),
        ("s:0 trl:11.0 lr:0.1 norm:1.0\n", "no evaluation in it"),
        ("s:0 tel:11.0\ns:1 tl:3\n", "line 2: found 's:1 tl:3', expected a line of llm.c's main.log"),
        ("s:0 tel:11.0\ns:1 tel:x\n", "line 2"),
        ("s:0 tel:11.0s:1 tel:2.0\n", "line 1"),
        ("s:-1 tel:11.0\n", "line 1"),
        ("step 0 loss 3\n", "line 1: found 'step 0 loss 3'"),
        ('{"step":0}\n', "line 1"),
        (b"\x00\xff\x89PNG\n", "not text"),
    ],
)
def test_a_file_that_is_no_such_log_is_refused_in_one_line(content, message, tmp_path):
    with pytest.raises(DataError, match=re.escape(message)) as refused:
        curves.read_llmc_log(log(tmp_path, content))
    assert "\n" not in str(refused.value) and "main.log" in str(refused.value)


def test_a_log_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        curves.read_llmc_log(tmp_path / "none.log")
    with pytest.raises(DataError, match="cannot be read"):
        curves.read_llmc_log(tmp_path)


def test_a_foreign_curve_with_times_lies_along_them():
    curve = Foreign("f", "", "", (CurvePoint(0, 0, 5.0), CurvePoint(1, 80, 1.0, seconds=3.0)))
    assert curves.foreign_series(curve).along("seconds") == [(3.0, 1.0)]
    assert isinstance(curves.foreign_series(curve), Series)
