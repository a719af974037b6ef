"""Numbers from paired differences: intervals, tests, power. Pure functions; docs/statistics.md has the formulas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

LEVEL = 0.95
ALPHA = 0.05
POWER = 0.80
BOOTSTRAP_PAIRS = 8
BOOTSTRAP_RESAMPLES = 10_000
EXACT_PAIRS = 32


@dataclass(frozen=True)
class Interval:
    """A confidence interval in the endpoint's unit."""

    low: float
    high: float
    level: float
    method: str


@dataclass(frozen=True)
class ExactTest:
    """Sign-flip test: `p` = `extreme` / `assignments`; no data of this n can give a p below `floor`."""

    p: float
    extreme: int
    assignments: int
    floor: float


@dataclass(frozen=True)
class Bootstrap:
    """A bootstrap interval of the mean difference, or why there is none."""

    interval: Interval | None
    reason: str = ""
    resamples: int = 0
    seed: int = 0


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of a sum rounded once, so that no order of the seeds changes it."""
    return math.fsum(values) / len(values)


def standard_deviation(values: Sequence[float]) -> float:
    """Sample SD, n - 1 in the denominator; exactly 0 for equal values."""
    if min(values) == max(values):
        return 0.0
    center = mean(values)
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - 1))


def rounding_of(pairs: Iterable[tuple[float, float]]) -> float:
    """How far two differences may lie apart through floating-point rounding of the values alone."""
    return 4 * math.ulp(1.0) * max(map(abs, chain.from_iterable(pairs)), default=0.0)


@lru_cache
def student_quantile(probability: float, df: int) -> float:
    """Quantile of Student's t distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def student_p(t: float, df: int) -> float:
    """Two-sided p-value of a t statistic."""
    from scipy.special import stdtr

    return float(2 * stdtr(df, -abs(t)))


def t_interval(differences: Sequence[float], level: float = LEVEL) -> Interval:
    """Student's interval of the mean of at least two differences."""
    n = len(differences)
    half = student_quantile((1 + level) / 2, n - 1) * standard_deviation(differences) / math.sqrt(n)
    return Interval(mean(differences) - half, mean(differences) + half, level, f"paired t, {n - 1} df")


def sd_interval(sd: float, n: int, level: float = LEVEL) -> Interval:
    """Chi-square interval of a standard deviation estimated from `n` normal values."""
    from scipy.special import chdtri

    low, high = (sd * math.sqrt((n - 1) / float(chdtri(n - 1, tail))) for tail in ((1 - level) / 2, (1 + level) / 2))
    return Interval(low, high, level, "chi-square")


def exact_floor(n: int) -> float:
    """Smallest two-sided p that `n` signs can give: 2 / 2^n, and 1 below two pairs."""
    return min(1.0, 2.0 ** (1 - n))


def pairs_for_exact(alpha: float = ALPHA) -> int:
    """Fewest pairs with which an exact test can reach `alpha`: 6 for 5 %."""
    n = 1
    while exact_floor(n) > alpha:
        n += 1
    return n


def sign_flip(differences: Sequence[float], rounding: float = 0.0) -> ExactTest | None:
    """Two-sided sign-flip test of the mean over all 2^n assignments (Fisher 1935); a tie counts as extreme.

    `rounding` is what a difference may be off by. All sums of one half of the differences are sorted and matched
    with those of the other, so that 2^n assignments cost 2^(n/2); None above `EXACT_PAIRS`.
    """
    import numpy as np

    n = len(differences)
    if n > EXACT_PAIRS:
        return None
    halves = []
    for half in (differences[: n // 2], differences[n // 2 :]):
        sums = np.zeros(1)
        for difference in half:
            sums = np.concatenate([sums + difference, sums - difference])
        halves.append(sums)
    left, right = halves[0], np.sort(halves[1])
    scale = math.fsum(map(abs, differences))
    bound = abs(math.fsum(differences)) - n * (rounding + 4 * math.ulp(1.0) * scale)
    if bound <= 0:
        extreme = 2**n
    else:
        above = len(right) - np.searchsorted(right, bound - left, side="left")
        extreme = int(above.sum() + np.searchsorted(right, -bound - left, side="right").sum())
    return ExactTest(extreme / 2**n, extreme, 2**n, exact_floor(n))


def power_of_t(effect_in_sd: float, n: int, alpha: float = ALPHA) -> float:
    """Power of the two-sided paired t test for a true mean difference, in SDs of the differences."""
    from scipy.special import nctdtr

    critical = student_quantile(1 - alpha / 2, n - 1)
    shift = effect_in_sd * math.sqrt(n)
    # The far tail is below the normal's, 1e-9 here; beyond about 7.5 SciPy returns NaN for it.
    far = nctdtr(n - 1, shift, -critical) if shift < 6 else 0.0
    return float(1 - nctdtr(n - 1, shift, critical) + far)


def minimum_detectable_effect(sd: float, n: int, power: float = POWER, alpha: float = ALPHA) -> float:
    """Smallest true mean difference that `n` >= 2 pairs detect with `power`, in the unit of `sd`.

    `sd` is that of the paired differences. From the noncentral t distribution, so exact for normal differences.
    """
    return sd * _detectable_in_sd(n, power, alpha)


@lru_cache
def _detectable_in_sd(n: int, power: float, alpha: float) -> float:
    assert n >= 2 and 0 < alpha < power < 1
    low, high = 0.0, 1.0
    while power_of_t(high, n, alpha) < power:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if power_of_t(middle, n, alpha) < power else (low, middle)
    return high


def bootstrap(differences: Sequence[float], seed: int = 0, resamples: int = BOOTSTRAP_RESAMPLES) -> Bootstrap:
    """Expanded percentile interval of the mean (Hesterberg 2015), from a fixed seed; none below 8 pairs."""
    import numpy as np
    from scipy.special import ndtr

    n = len(differences)
    if n < BOOTSTRAP_PAIRS:
        return Bootstrap(None, f"n={n} is below {BOOTSTRAP_PAIRS}, where it would cover too little")
    if min(differences) == max(differences):
        return Bootstrap(None, "all differences are equal (zero variance)")
    picks_RN = np.random.default_rng(seed).integers(0, n, (resamples, n))
    tail = float(ndtr(-math.sqrt(n / (n - 1)) * student_quantile((1 + LEVEL) / 2, n - 1)))
    low, high = np.quantile(np.asarray(differences)[picks_RN].mean(axis=1), [tail, 1 - tail])
    return Bootstrap(Interval(float(low), float(high), LEVEL, "expanded percentile"), "", resamples, seed)
