"""Time to a target: what evaluations tell of it, by hand, by SciPy, and by a published survival curve."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gpt2exp.errors import StorageError
from gpt2exp.report.censoring import (
    Bounds,
    Crossing,
    Evaluation,
    compare_reaching,
    crossing,
    sign_test,
    summarize_reaching,
    which_first,
)
from gpt2exp.report.judgement import judge
from gpt2exp.report.sentences import describe_crossing, explain_reaching

TARGET = 3.28


def rows(*losses, every=250, start=0, seconds=None):
    steps = [start + every * i for i in range(len(losses))]
    return [
        Evaluation(s, 1000 * s, loss, *([] if seconds is None else [seconds[i]]))
        for i, (s, loss) in enumerate(zip(steps, losses, strict=True))
    ]


def reached(*losses, axis="step", **how):
    return crossing(rows(*losses, **how), TARGET, axis)


def between(lower, upper, last=1000.0):
    return Crossing("step", TARGET, "interval", float(lower), float(upper), float(last))


def never(last):
    return Crossing("step", TARGET, "right", float(last), math.inf, float(last))


def test_a_crossing_lies_between_two_evaluations():
    c = reached(11.0, 4.0, 3.29, 3.27, 3.2)
    assert (c.kind, c.lower, c.upper, c.last) == ("interval", 500, 750, 1000)
    assert c.estimate == pytest.approx(625)  # half way from 3.29 to 3.27
    assert describe_crossing(c) == "reached after step 500 and by step 750 (about 625 by linear interpolation)"


def test_exactly_on_target_is_reached():
    c = reached(11.0, 3.28, 3.0)
    assert (c.kind, c.lower, c.upper, c.estimate) == ("interval", 0, 250, 250)


def test_not_reached_by_the_last_step():
    c = reached(11.0, 4.0, 3.2801)
    assert (c.kind, c.lower, c.upper, c.estimate) == ("right", 500, math.inf, None)
    assert describe_crossing(c) == "not reached by step 500"


def test_already_there_at_the_first_evaluation():
    c = reached(3.2, 3.1, start=250)
    assert (c.kind, c.lower, c.upper) == ("left", 0, 250)
    assert describe_crossing(c) == "reached at or before step 250, the first evaluation"
    at_once = reached(3.2, 3.1)
    assert (at_once.kind, at_once.upper) == ("left", 0)


def test_rising_above_the_target_again_is_noted():
    c = reached(11.0, 3.2, 3.3, 3.1, 3.4)
    assert (c.lower, c.upper, c.again_above) == (0, 250, (500, 1000))
    assert describe_crossing(c).endswith("; above it again at step 500, step 1,000")


def test_a_loss_that_is_no_number_has_not_reached_the_target():
    c = reached(11.0, math.nan, 3.2)
    assert (c.kind, c.lower, c.upper, c.estimate, c.non_finite) == ("interval", 250, 500, None, (250,))
    diverged = reached(11.0, 4.0, math.nan)
    assert (diverged.kind, diverged.lower) == ("right", 500)
    assert describe_crossing(diverged) == "not reached by step 500; loss not finite at step 500"


def test_tokens_and_seconds():
    assert reached(11.0, 4.0, 3.2, axis="tokens").upper == 500_000
    c = reached(11.0, 4.0, 3.2, axis="seconds", seconds=[1.0, 60.0, 122.5])
    assert (c.lower, c.upper) == (60.0, 122.5)
    assert describe_crossing(c).startswith("reached after 60.0 s and by 122.5 s")


def test_nothing_to_tell_from():
    assert crossing([], TARGET).reason == "no evaluation"
    untimed = reached(11.0, 3.2, axis="seconds")
    assert (untimed.kind, untimed.reason) == ("unknown", "no seconds recorded")
    assert describe_crossing(untimed) == "unknown: no seconds recorded"


@pytest.mark.parametrize("second", [0, -250])
def test_rows_out_of_order_are_refused(second):
    with pytest.raises(StorageError, match="out of order: step"):
        crossing([Evaluation(0, 0, 11.0), Evaluation(second, second, 4.0)], TARGET)


def test_runs_that_missed_the_target_count_with_the_whole_horizon():
    # Reached in (250, 500] and (500, 750], never by 1000: the mean is at least (250 + 500 + 1000) / 3.
    arm = summarize_reaching("muonclip", {42: between(250, 500), 43: between(500, 750), 44: never(1000)})
    assert (arm.reached, arm.n, arm.horizon) == (2, 3, 1000)
    assert (arm.mean.low, arm.mean.high) == pytest.approx((1750 / 3, 2250 / 3))
    assert arm.median == Bounds(500, 750)


def test_no_median_if_fewer_than_half_reached_it():
    arm = summarize_reaching("adamw", {42: between(250, 500), 43: never(1000), 44: never(1000)})
    assert arm.median is None and arm.reached == 1
    half = summarize_reaching("adamw", {42: between(250, 500), 43: never(1000)})
    assert half.median == Bounds(250, 500)
    nobody = summarize_reaching("adamw", {42: never(1000), 43: never(1000)})
    assert (nobody.reached, nobody.mean, nobody.median) == (0, Bounds(1000, 1000), None)


def test_a_crossing_that_straddles_the_horizon():
    arm = summarize_reaching("adamw", {42: between(700, 900), 43: between(700, 900)}, horizon=800)
    assert (arm.reached, arm.mean, arm.median) == (0, Bounds(700, 800), Bounds(700, None))


def test_the_horizon_is_where_the_shortest_run_ends():
    arm = summarize_reaching("adamw", {42: between(250, 500, last=1000), 43: never(750)})
    assert arm.horizon == 750 and arm.mean == Bounds(500, 625)


def test_a_horizon_that_no_run_was_followed_to():
    arm = summarize_reaching("adamw", {42: between(250, 500), 43: never(750)}, horizon=2000)
    assert arm.mean is None and "followed to 2000" in arm.why
    assert "no time to the target" in explain_reaching(compare_reaching("steps", ("a", {}), ("b", {})))[0]


def test_a_run_without_evaluations_leaves_the_arm_unsummarized():
    arm = summarize_reaching("adamw", {42: between(250, 500), 43: crossing([], TARGET)})
    assert (arm.mean, arm.median, arm.why) == (None, None, "seed 43: no evaluation")


def test_a_published_survival_curve():
    # Freireich et al. (1963), weeks of remission under 6-MP; the Kaplan-Meier estimates are the table printed in
    # every textbook (e.g. Kleinbaum and Klein): .857 .807 .753 .690 .627 .538 .448, median 23.
    events = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    censored = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    runs = [between(t, t, last=t) for t in events] + [never(t) for t in censored]
    arm = summarize_reaching("6-MP", dict(enumerate(runs)), horizon=35.0)
    steps = [(6, 1), (1, 0.857), (3, 0.807), (3, 0.753), (3, 0.690), (6, 0.627), (1, 0.538), (12, 0.448)]
    assert arm.mean.low == arm.mean.high == pytest.approx(sum(width * share for width, share in steps), abs=0.02)
    assert arm.median == Bounds(23, 23)


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=10))
@settings(max_examples=100, deadline=None)
def test_the_area_against_scipys_survival_function(observations):
    horizon = max(t for t, _ in observations)
    runs = [between(t, t, last=t) if event else never(t) for t, event in observations]
    arm = summarize_reaching("arm", dict(enumerate(runs)), horizon=float(horizon))
    uncensored, right = ([t for t, event in observations if event is kind] for kind in (True, False))
    sf = stats.ecdf(stats.CensoredData(uncensored=uncensored, right=right)).sf
    weeks = np.arange(horizon)
    assert arm.mean.high == pytest.approx(float(np.sum(sf.evaluate(weeks))))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=6), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_bounds_hold_whatever_happened_between_evaluations(intervals, misses):
    """Without early ends the restricted mean is the plain mean of min(T, horizon), and T may be anywhere."""
    horizon = 8.0
    runs = [between(low, low + width, last=12) for low, width in intervals] + [never(12)] * misses
    arm = summarize_reaching("arm", dict(enumerate(runs)), horizon)
    for share in (0.01, 0.5, 1.0):
        times = [min(low + share * width, horizon) for low, width in intervals] + [horizon] * misses
        assert arm.mean.low - 1e-9 <= np.mean(times) <= arm.mean.high + 1e-9


@pytest.mark.parametrize(
    ("a", "b", "first"),
    [
        (between(250, 500), between(500, 750), "a"),
        (between(500, 750), between(250, 500), "b"),
        (between(250, 500), between(250, 500), "undecided"),
        (between(250, 750), between(500, 1000), "undecided"),
        (between(750, 1000), never(1000), "a"),
        (never(1000), between(0, 250), "b"),
        (never(1000), never(1000), "undecided"),
        (never(500), between(500, 750), "undecided"),
        (never(500), between(250, 500), "b"),
    ],
)
def test_which_arm_was_first(a, b, first):
    assert which_first(a, b) == first


def test_which_arm_was_first_from_the_start():
    at_once, early, later = reached(3.0), reached(3.0, start=250), reached(11.0, 3.0)
    assert which_first(at_once, at_once) == "undecided"
    assert which_first(at_once, later) == "a"
    assert which_first(at_once, early) == which_first(early, later) == "undecided"


def arms():
    a = {42: between(250, 500), 43: between(250, 500), 44: between(500, 750)}
    b = {42: between(250, 500), 43: between(750, 1000), 44: never(1000)}
    return ("muonclip", a), ("adamw", b)


def test_two_arms():
    c = compare_reaching("steps to 3.28", *arms())
    assert c.first == {42: "undecided", 43: "a", 44: "a"}
    assert (c.n, c.p, c.floor) == (2, 0.5, 0.5)
    assert c.mean_difference == Bounds(pytest.approx((1000 - 2500) / 3), pytest.approx((1750 - 2000) / 3))
    text = " ".join(explain_reaching(c))
    assert "muonclip: 3 of 3 runs reached the target by step 1,000" in text
    assert "muonclip in 2, adamw in 0 of 3 pairs; 1 undecided" in text
    assert "no p below 0.5 is possible" in text
    assert judge(c).primary.verdict == "not judged"


def test_a_pair_without_its_partner_is_incomplete():
    a, (name, b) = arms()
    c = compare_reaching("steps to 3.28", a, (name, {42: b[42], 43: crossing([], TARGET)}))
    assert c.incomplete == ("seed 43: adamw has no evaluation", "seed 44: adamw has no run")
    assert (c.p, c.mean_difference, c.n) == (None, None, 0)
    assert "seed 44: adamw has no run" in explain_reaching(c)[-1]


def test_undecided_pairs_give_no_p():
    same = {42: never(1000), 43: never(1000)}
    c = compare_reaching("steps to 3.28", ("a", same), ("b", same))
    assert (c.p, c.no_p) == (None, "no pair is decided")


@pytest.mark.parametrize(("first", "second"), [(3, 0), (6, 0), (4, 2), (3, 3), (0, 9), (7, 12)])
def test_sign_test_against_scipys_binomial_test(first, second):
    assert sign_test(first, second) == pytest.approx(stats.binomtest(first, first + second, 0.5).pvalue)
