"""Paired statistics against published examples, SciPy, brute force and simulation."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from gpt2exp.report import paired
from gpt2exp.report.judgement import holm, judge
from gpt2exp.report.sentences import explain, explain_arm, explain_judgement, number, p_value
from gpt2exp.report.statistics import compare, summarize

DOC = Path(__file__).parents[2] / "docs" / "statistics.md"

# Darwin's cross- and self-fertilised maize, eighths of an inch: Fisher, The Design of Experiments (1935), ch. III.
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
# Student (1908), hours of sleep gained under two drugs; R's data set `sleep`.
SLEEP_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
LOSSES = {42: (3.2581, 3.2791), 43: (3.2609, 3.2842), 44: (3.2567, 3.2780)}


def compared(a, b, endpoint="loss", unit=""):
    arms = [summarize(name, dict(enumerate(values, 1))) for name, values in (("a", a), ("b", b))]
    return compare(endpoint, *arms, unit=unit)


def differing(differences):
    return compared(differences, [0.0] * len(differences))


def example():
    arms = [summarize(arm, {s: pair[i] for s, pair in LOSSES.items()}) for i, arm in enumerate(("muonclip", "adamw"))]
    return compare("final validation loss", *arms, unit="nats")


def test_students_sleep_data_as_published():
    # R: t.test(extra ~ group, data = sleep, paired = TRUE), printed in R's own documentation of the data set.
    c = compared(SLEEP_1, SLEEP_2)
    assert c.n == 10 and c.status == "complete"
    assert (c.t, c.p) == (pytest.approx(-4.0621, abs=5e-5), pytest.approx(0.002833, abs=5e-7))
    assert (c.interval.low, c.interval.high) == (
        pytest.approx(-2.4598858, abs=5e-8),
        pytest.approx(-0.7001142, abs=5e-8),
    )
    assert c.mean == pytest.approx(-1.58)


def test_fishers_count_of_darwins_sign_flips():
    # Fisher (1935, section 21): of 32,768 sign assignments 863 reach the observed total of 314, so 5.267 % two-sided.
    exact = differing(DARWIN).exact
    assert (exact.extreme, exact.assignments) == (2 * 863, 32768)
    assert exact.p == pytest.approx(0.05267, abs=5e-6)


def test_three_pairs_against_scipy():
    # scipy 1.17.1: ttest_rel(a, b), its confidence_interval() and pearsonr(a, b), printed with repr.
    c = example()
    assert c.t == pytest.approx(-30.291265532999844, rel=1e-11)
    assert c.p == pytest.approx(0.0010880676571097582, rel=1e-11)
    assert c.interval.low == pytest.approx(-0.024972666741881616, rel=1e-12)
    assert c.interval.high == pytest.approx(-0.01876066659145164, rel=1e-12)
    assert c.pairing.correlation == pytest.approx(0.9861812276095867, rel=1e-11)
    assert c.differences == {42: 3.2581 - 3.2791, 43: 3.2609 - 3.2842, 44: 3.2567 - 3.2780}
    assert c.direction == "muonclip - adamw"
    assert c.d_z == pytest.approx(c.mean / c.sd)
    assert (c.a.n, c.a.mean) == (3, pytest.approx(np.mean([3.2581, 3.2609, 3.2567])))
    assert c.a.sd == pytest.approx(np.std([3.2581, 3.2609, 3.2567], ddof=1))


@pytest.mark.parametrize("n", [2, 3, 6, 8, 13])
def test_everything_scipy_also_computes(n):
    rng = np.random.default_rng(n)
    seed_effect = rng.normal(3, 0.1, n)
    a, b = (list(seed_effect + rng.normal(0, 0.05, n)) for _ in range(2))
    c, theirs = compared(a, b), stats.ttest_rel(a, b)
    low, high = theirs.confidence_interval(0.95)
    assert (c.t, c.p) == (pytest.approx(theirs.statistic), pytest.approx(theirs.pvalue))
    assert (c.interval.low, c.interval.high) == (pytest.approx(low), pytest.approx(high))
    permuted = stats.permutation_test(
        (a, b), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples", n_resamples=np.inf
    )
    assert c.exact.p == permuted.pvalue
    sds = [c.sd * math.sqrt((n - 1) / stats.chi2.ppf(q, n - 1)) for q in (0.975, 0.025)]
    assert [c.sd_interval.low, c.sd_interval.high] == pytest.approx(sds)
    if n > 2:
        assert c.pairing.correlation == pytest.approx(stats.pearsonr(a, b).statistic)
        low, high = stats.ttest_ind(a, b).confidence_interval(0.95)
        assert c.pairing.width_ratio == pytest.approx((c.interval.high - c.interval.low) / (high - low))


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=9))
@settings(max_examples=150, deadline=None)
def test_sign_flips_against_a_loop_over_all_of_them(differences):
    observed = abs(sum(differences))
    signs = itertools.product((1, -1), repeat=len(differences))
    extreme = sum(abs(sum(s * d for s, d in zip(sign, differences, strict=True))) >= observed for sign in signs)
    test = paired.sign_flip([float(d) for d in differences])
    assert (test.extreme, test.assignments) == (extreme, 2 ** len(differences))
    assert (Fraction(test.p) * 2 ** len(differences)).denominator == 1
    assert test.floor <= test.p <= 1


def test_rounding_of_the_losses_does_not_break_ties():
    # 1, 2, 3, -4 hundredths sum to 2. By hand with the last sign fixed, 4 +- 1 +- 2 +- 3 gives 10, 8, 6, 4, 4, 2, 0
    # and -2: seven of eight reach 2. In floating point two of those that tie with the observed sum fall short.
    a, b = [3.31, 3.32, 3.33, 3.26], [3.3] * 4
    assert paired.sign_flip([x - y for x, y in zip(a, b, strict=True)]).p == 6 / 8
    assert compared(a, b).exact.p == 7 / 8


def test_many_pairs_are_counted_exactly_and_too_many_refused():
    # All one sign: only the two extreme assignments; one small opposite sign adds the two where it flips.
    assert paired.sign_flip([1.0] * 32).extreme == 2
    assert paired.sign_flip([1.0] * 31 + [-0.5]).extreme == 4
    many = differing([1.0 + 0.01 * k for k in range(33)])
    assert many.exact is None and "at most 32" in many.why["exact"]
    assert any("No exact test" in line for line in explain(many))


@pytest.mark.parametrize(("n", "floor"), [(1, 1.0), (2, 0.5), (3, 0.25), (5, 0.0625), (6, 0.03125)])
def test_floor_of_an_exact_p(n, floor):
    assert paired.exact_floor(n) == floor
    assert paired.sign_flip([1.0 + k for k in range(n)]).p == floor


def test_six_pairs_are_the_fewest_that_reach_five_percent():
    assert [paired.pairs_for_exact(alpha) for alpha in (0.25, 0.05, 0.01)] == [3, 6, 8]


FINITE = st.lists(st.tuples(st.integers(-500, 500), st.integers(-500, 500)), min_size=2, max_size=10)


@given(FINITE, st.integers(-1000, 1000))
@settings(max_examples=60, deadline=None)
def test_a_shift_of_both_arms_changes_nothing(pairs, shift):
    a, b = zip(*pairs, strict=True)
    here, there = compared(a, b), compared([x + shift for x in a], [y + shift for y in b])
    for name in ("mean", "sd", "t", "p", "mde"):
        assert getattr(there, name) == pytest.approx(getattr(here, name))
    assert there.exact == here.exact


@given(FINITE)
@settings(max_examples=60, deadline=None)
def test_swapping_the_arms_only_turns_signs(pairs):
    a, b = zip(*pairs, strict=True)
    here, there = compared(a, b), compared(b, a)
    assert there.mean == pytest.approx(-here.mean) and there.sd == pytest.approx(here.sd)
    assert there.exact == here.exact and there.p == pytest.approx(here.p)
    if here.interval:
        assert (there.interval.low, there.interval.high) == pytest.approx((-here.interval.high, -here.interval.low))


@given(FINITE, st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_of_seeds_changes_no_bit(pairs, random):
    seeds = list(range(len(pairs)))
    random.shuffle(seeds)
    arms = [summarize(n, {s: float(p[i]) for s, p in enumerate(pairs)}) for i, n in enumerate("ab")]
    shuffled = [summarize(n, {s: float(pairs[s][i]) for s in seeds}) for i, n in enumerate("ab")]
    assert compare("loss", *arms) == compare("loss", *shuffled)


def test_minimum_detectable_effect_of_published_sample_sizes():
    # Cohen (1988) and G*Power 3: d = 0.5, two-sided 5 %, power 0.80 needs 34 pairs; d = 0.8 needs 15.
    for n, d in ((34, 0.5), (15, 0.8)):
        assert paired.minimum_detectable_effect(1, n) <= d < paired.minimum_detectable_effect(1, n - 1)
    assert paired.minimum_detectable_effect(0.002, 3) == pytest.approx(0.002 * 3.264, rel=1e-3)


@pytest.mark.parametrize("n", [2, 3, 6, 8, 20])
def test_power_against_numerical_integration(n):
    """Power is the normal power at a known sd, averaged over the sd's own chi distribution."""
    critical, root = stats.t.ppf(0.975, n - 1), math.sqrt(n - 1)

    def given_sd(u, shift):
        return (special.ndtr(shift - critical * u / root) + special.ndtr(-shift - critical * u / root)) * stats.chi.pdf(
            u, n - 1
        )

    for shift in (0.3, 2.0, 5.9, 6.1, 9.0, 16.0):
        power, _ = integrate.quad(given_sd, 0, 40, args=(shift,), points=[root, shift * root / critical], limit=200)
        assert paired.power_of_t(shift / math.sqrt(n), n) == pytest.approx(power, abs=1e-8)
    assert paired.power_of_t(paired.minimum_detectable_effect(1, n), n) == pytest.approx(0.8, abs=1e-9)


def test_one_missing_value_leaves_no_statistic_and_names_the_seed():
    a, b = summarize("muonclip", {42: 3.2, 43: 3.3}), summarize("adamw", {42: 3.4, 43: 3.4, 44: 3.5})
    c = compare("loss", a, b)
    assert c.status == "incomplete" and c.incomplete == ("seed 44: muonclip has no value",)
    assert (c.mean, c.t, c.p, c.interval, c.exact, c.mde, c.pairing) == (None,) * 7
    assert c.bootstrap.interval is None and c.no_p == "seed 44: muonclip has no value"
    assert "incomplete" in explain(c)[0] and "seed 44" in explain(c)[0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_not_averaged_around(value):
    arm = summarize("muonclip", {42: 3.2, 43: value, 44: 3.3})
    assert (arm.mean, arm.sd, arm.n, arm.non_finite) == (None, None, 2, (43,))
    assert "seed 43 is not finite" in explain_arm(arm)
    c = compare("loss", arm, summarize("adamw", {42: 3.2, 43: 3.2, 44: 3.2}))
    assert c.status == "incomplete" and c.mean is None and "seed 43: muonclip is not finite" in c.incomplete


def test_runs_that_are_still_to_come_are_listed_beside_the_mean_of_the_others():
    arm = summarize("adamw", {42: 3.0, 43: 3.5}, seeds=(42, 43, 44))
    assert (arm.mean, arm.n, arm.missing) == (3.25, 2, (44,))
    assert explain_arm(arm, "nats") == "adamw: mean 3.25 nats, sd 0.354 nats, n=2; seed 44 is missing."
    assert explain_arm(summarize("adamw", {42: None})) == "adamw: no values; seed 42 is missing."
    assert "so no sd" in explain_arm(summarize("adamw", {42: 3.0}))


def test_no_pairs_and_one_pair():
    nothing = compared([], [])
    assert (nothing.status, nothing.n, nothing.mean, nothing.no_p) == ("empty", 0, None, "no pairs")
    assert "nothing is compared" in explain(nothing)[0]
    one = compared([3.0], [3.5])
    assert (one.mean, one.sd, one.p, one.interval, one.mde) == (-0.5, None, None, None, None)
    assert one.exact.p == 1 and "one pair" in one.why["sd"]
    assert any("with n=1 pair no exact p below 1 is possible" in line for line in explain(one))


def test_equal_differences_have_no_p_of_1e_32():
    # All 0.1 but for the last bits, which SciPy's ttest_rel turns into a p-value near 1e-30.
    a, b = [3.3, 3.1, 2.3], [3.2, 3.0, 2.2]
    assert len(set(np.subtract(a, b))) > 1 and stats.ttest_rel(a, b).pvalue < 1e-25
    c = compared(a, b)
    assert (c.sd, c.t, c.p, c.interval, c.mde) == (0.0, None, None, None, None)
    assert c.mean == pytest.approx(0.1) and c.exact.p == 0.25
    assert any("zero variance" in line for line in explain(c))


def test_identical_arms_are_suspicious():
    c = compared([3.0, 3.1, 3.2], [3.0, 3.1, 3.2])
    assert (c.mean, c.sd, c.exact.p, c.p) == (0.0, 0.0, 1.0, None)
    assert any("check that the two arms really are different runs" in line for line in explain(c))


def test_two_pairs_and_constant_arms_have_no_correlation():
    assert "always correlate" in compared([1.0, 2.0], [1.5, 3.0]).why["pairing"]
    assert "same for every seed" in compared([1.0, 2.0, 4.0], [1.0, 1.0, 1.0]).why["pairing"]


def test_pairing_can_help_or_cost():
    together = compared([1.0, 2.0, 3.0], [1.1, 2.2, 3.1]).pairing
    assert together.correlation > 0.9 and together.width_ratio < 1
    apart = compared([1.0, 2.0, 3.0], [2.0, 1.0, 2.1])
    assert apart.pairing.correlation < 0.5 and apart.pairing.width_ratio > 1
    assert any("wider than an unpaired one" in line for line in explain(apart))


def test_bootstrap_is_refused_below_eight_pairs_and_repeatable_from_there():
    seven = differing([float(k) for k in range(7)]).bootstrap
    assert seven.interval is None and "n=7 is below 8" in seven.reason
    eight = [0.3, -0.1, 0.4, 0.1, 0.5, 0.9, -0.2, 0.6]
    first, again, other = (paired.bootstrap(eight, seed=seed) for seed in (5, 5, 6))
    assert first == again and first != other and first.resamples == 10_000
    assert first.interval.low < np.mean(eight) < first.interval.high
    assert "equal" in paired.bootstrap([1.0] * 9).reason


def test_bootstrap_against_every_resample_there_is():
    """Three ones among nine values: the resampled mean is binomial, so its quantiles are known exactly."""
    interval = paired.bootstrap([0.0] * 6 + [1.0] * 3, resamples=200_000).interval
    tail = stats.norm.cdf(-math.sqrt(9 / 8) * stats.t.ppf(0.975, 8))
    expected = stats.binom(9, 1 / 3).ppf([tail, 1 - tail]) / 9
    assert [interval.low, interval.high] == pytest.approx(expected)


def test_holm_by_hand():
    # Sorted .01 .02 .03 .04 times 4, 3, 2, 1 = .04 .06 .06 .04, then made monotone; R's p.adjust gives the same.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    # A test that could not be computed was still planned: the other is doubled.
    assert holm([0.02, None]) == [0.04, None]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_holm_rejects_what_closed_testing_with_bonferroni_rejects(p_values):
    """Holm is the closure of Bonferroni: an adjusted p is the largest Bonferroni p of the sets that contain it."""
    indices = range(len(p_values))
    sets = [s for size in indices for s in itertools.combinations(indices, size + 1)]
    closure = [max(min(1.0, len(s) * min(p_values[j] for j in s)) for s in sets if i in s) for i in indices]
    assert holm(p_values) == pytest.approx(closure)


def test_verdicts():
    clear = differing([1.0, 1.1, 0.9, 1.2, 0.8, 1.05])
    unclear = differing([1.0, -1.1, 0.9, -1.2, 0.8, 0.1])
    judged = judge(clear, [clear, unclear])
    assert judged.primary.verdict == "difference" and judged.primary.adjusted == clear.p
    assert [o.verdict for o in judged.secondary] == ["difference", "not shown"]
    assert judged.secondary[0].adjusted == 2 * clear.p
    assert "paired t test" in judged.primary.reason
    assert "not evidence that there is none" in " ".join(explain_judgement(judged))


def test_three_pairs_are_never_called_a_difference_unless_the_plan_said_so():
    assert judge(example()).primary.verdict == "not judged"
    assert "below 6" in judge(example()).primary.reason
    assert judge(example(), minimum_pairs=3).primary.verdict == "difference"


def test_an_incomplete_primary_endpoint_is_not_judged():
    c = compared([3.0, 3.1], [3.0])
    assert judge(c).primary.verdict == "not judged" and "seed 2" in judge(c).primary.reason


def test_sentences_do_not_overclaim():
    text = " ".join(explain(differing([0.1, -0.2, 0.15])))
    assert "contains zero" in text and "that there is none is not shown either" in text
    assert "with n=3 pairs no exact p below 0.25 is possible" in text
    three, six = explain(example()), explain(differing([1.0, 1.1, 0.9, 1.2, 0.8, 1.05]))
    assert any("only through the assumption of normality" in line for line in three)
    assert "The interval excludes zero." in six and not any("cannot reach 0.05" in line for line in six)
    assert not any("significant" in line for line in (*three, *six))


def test_the_modules_import_without_heavy_libraries():
    heavy = "{'torch', 'numpy', 'scipy', 'pandas'}"
    modules = ", ".join(f"gpt2exp.report.{name}" for name in ("statistics", "judgement", "censoring", "sentences"))
    code = f"import sys, {modules}; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=DOC.parents[1]).returncode == 0


def test_numbers_in_words():
    assert [number(x) for x in (3.27843, 12500, 5128192000.0, -0.0)] == ["3.2784", "12,500", "5,128,192,000", "-0"]
    assert [p_value(p) for p in (0.25, 0.00109, 1e-9)] == ["p = 0.25", "p = 0.0011", "p < 0.0001"]


def test_the_worked_example_of_the_documentation():
    page = DOC.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \| (-?[\d.]+) \|$", page, re.MULTILINE)
    assert {int(seed): (float(a), float(b)) for seed, a, b, _ in rows} == LOSSES
    assert [d for *_, d in rows] == [f"{a - b:.4f}" for a, b in LOSSES.values()]
    [block] = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert block.splitlines() == explain(example())


def test_the_table_of_the_documentation():
    page = DOC.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|$", page, re.MULTILINE)
    assert [int(row[0]) for row in rows] == [2, 3, 5, 6, 8, 10, 20]
    for n, *written in rows:
        n = int(n)
        half = stats.t.ppf(0.975, n - 1) / math.sqrt(n)
        spread = [math.sqrt((n - 1) / stats.chi2.ppf(q, n - 1)) for q in (0.975, 0.025)]
        expected = [half, paired.minimum_detectable_effect(1, n), 2 / 2**n, *spread]
        assert [float(x) for x in written] == pytest.approx(expected, rel=5e-3, abs=5e-7)


def simulated(n, protocols, effect=0.0, seed=0):
    """Paired runs whose seeds move both arms; the differences have SD 1 and mean `effect`."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(3, 2, (protocols, n))
    noise = rng.normal(0, math.sqrt(0.5), (2, protocols, n))
    return shared + noise[0] + effect, shared + noise[1]


@pytest.mark.slow
def test_t_interval_covers_what_it_says_at_three_pairs():
    protocols = 20_000
    a, b = simulated(3, protocols)
    covered = exact_small = 0
    for i in range(protocols):
        c = compared(a[i].tolist(), b[i].tolist())
        covered += c.interval.low <= 0 <= c.interval.high
        exact_small += c.exact.p < 0.25
    assert covered / protocols == pytest.approx(0.95, abs=0.01)
    assert exact_small == 0


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 6])
def test_minimum_detectable_effect_is_found_in_eighty_percent(n):
    protocols = 20_000
    a, b = simulated(n, protocols, effect=paired.minimum_detectable_effect(1, n), seed=n)
    found = sum(compared(a[i].tolist(), b[i].tolist()).p <= 0.05 for i in range(protocols))
    assert found / protocols == pytest.approx(0.8, abs=0.015)


@pytest.mark.slow
def test_sign_flip_keeps_its_level_without_normality():
    """Symmetric, heavy-tailed differences at n=6: P(p <= 2/64) is 2/64 exactly."""
    protocols = 20_000
    differences = np.random.default_rng(1).standard_t(2, (protocols, 6))
    rejected = sum(paired.sign_flip(row).p <= 0.05 for row in differences.tolist())
    assert rejected / protocols == pytest.approx(2 / 64, abs=0.004)


@pytest.mark.slow
def test_bootstrap_interval_covers_at_eight_pairs():
    """Where it is allowed, it covers nearly what it says: 95 % to within 2 %."""
    protocols = 4_000
    differences = np.random.default_rng(2).normal(0, 1, (protocols, 8)).tolist()
    intervals = [paired.bootstrap(row, resamples=2_000).interval for row in differences]
    assert sum(i.low <= 0 <= i.high for i in intervals) / protocols == pytest.approx(0.95, abs=0.02)
