"""Paired comparison of two arms: the records a report prints. docs/statistics.md says what and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpt2exp.report.paired import (
    EXACT_PAIRS,
    Bootstrap,
    ExactTest,
    Interval,
    bootstrap,
    mean,
    minimum_detectable_effect,
    rounding_of,
    sd_interval,
    sign_flip,
    standard_deviation,
    student_p,
    student_quantile,
    t_interval,
)

EQUAL = "all differences are equal (zero variance), so there is no t test or interval"
NO_BOOTSTRAP = Bootstrap(None, "there is no complete set of pairs")


@dataclass(frozen=True)
class ArmSummary:
    """One arm over its seeds: `by_seed` as recorded, None where there is no value.

    `n` counts finite values. `mean` and `sd` (n - 1 in the denominator) are over the recorded values, and None
    where one of them is not finite: to average the rest would flatter an arm that diverged.
    """

    arm: str
    by_seed: Mapping[int, float | None]
    n: int
    mean: float | None
    sd: float | None
    missing: tuple[int, ...]
    non_finite: tuple[int, ...]


@dataclass(frozen=True)
class Pairing:
    """What pairing gained.

    `correlation` is Pearson's between the arms over seeds. `sd_ratio` is the SD of the differences over
    sqrt(sd_a^2 + sd_b^2), what it would be without correlation; `width_ratio` that of the paired t interval's
    width to an unpaired one's (pooled, 2n - 2 degrees of freedom). Below 1, pairing helped.
    """

    correlation: float
    sd_ratio: float
    width_ratio: float


@dataclass(frozen=True)
class Comparison:
    """Arm a minus arm b over paired seeds, for one endpoint.

    `incomplete` names what each broken pair lacks; with any, no statistic is computed. Fields are None where the
    data do not define them, and `why` (by field: sd, t, exact, pairing) says the reason. `mde` is the smallest
    true mean difference that n pairs with this SD detect with 80 % power at a two-sided 5 % level; `mde_range`
    is the same at the ends of the SD's own 95 % interval. `d_z` is mean / sd.
    """

    endpoint: str
    unit: str
    a: ArmSummary
    b: ArmSummary
    differences: Mapping[int, float]
    incomplete: tuple[str, ...] = ()
    mean: float | None = None
    sd: float | None = None
    t: float | None = None
    p: float | None = None
    interval: Interval | None = None
    exact: ExactTest | None = None
    sd_interval: Interval | None = None
    mde: float | None = None
    mde_range: tuple[float, float] | None = None
    d_z: float | None = None
    pairing: Pairing | None = None
    bootstrap: Bootstrap = NO_BOOTSTRAP
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def test(self) -> str:
        """The test that `p` comes from."""
        return "paired t test"

    @property
    def n(self) -> int:
        """Complete pairs."""
        return len(self.differences)

    @property
    def status(self) -> str:
        """`complete`, `incomplete` (a pair lacks a value) or `empty` (no pairs at all)."""
        return "incomplete" if self.incomplete else "complete" if self.differences else "empty"

    @property
    def direction(self) -> str:
        """What was subtracted from what."""
        return f"{self.a.arm} - {self.b.arm}"

    @property
    def no_p(self) -> str:
        """Why `p` is None; empty where it is not."""
        return "" if self.p is not None else "; ".join(self.incomplete) or self.why.get("t", "no pairs")


def summarize(arm: str, values: Mapping[int, float | None], seeds: Iterable[int] = ()) -> ArmSummary:
    """One arm's values by seed; `seeds` that were asked for and have no value are listed as missing."""
    by_seed = {seed: values.get(seed) for seed in sorted({*values, *seeds})}
    known = {seed: value for seed, value in by_seed.items() if value is not None}
    non_finite = tuple(seed for seed, value in known.items() if not math.isfinite(value))
    finite = [value for value in known.values() if math.isfinite(value)]
    meaningful = bool(finite) and not non_finite
    return ArmSummary(
        arm=arm,
        by_seed=by_seed,
        n=len(finite),
        mean=mean(finite) if meaningful else None,
        sd=standard_deviation(finite) if meaningful and len(finite) > 1 else None,
        missing=tuple(seed for seed, value in by_seed.items() if value is None),
        non_finite=non_finite,
    )


def compare(endpoint: str, a: ArmSummary, b: ArmSummary, *, unit: str = "") -> Comparison:
    """Paired comparison, always a - b; one broken pair makes all of it incomplete."""
    pairs = {seed: (a.by_seed.get(seed), b.by_seed.get(seed)) for seed in sorted({*a.by_seed, *b.by_seed})}
    broken = [
        f"seed {seed}: {arm} {'has no value' if value is None else 'is not finite'}"
        for seed, pair in pairs.items()
        for arm, value in zip((a.arm, b.arm), pair, strict=True)
        if value is None or not math.isfinite(value)
    ]
    whole = {
        seed: (x, y)
        for seed, (x, y) in pairs.items()
        if x is not None and y is not None and math.isfinite(x) and math.isfinite(y)
    }
    found = Comparison(endpoint, unit, a, b, {seed: x - y for seed, (x, y) in whole.items()}, tuple(broken))
    return found if found.status != "complete" else _with_statistics(found, rounding_of(whole.values()))


def _with_statistics(found: Comparison, rounding: float) -> Comparison:
    differences = list(found.differences.values())
    n, spread = len(differences), max(differences) - min(differences)
    exact = sign_flip(differences, rounding)
    why = {} if exact else {"exact": f"sign flips are counted for at most {EXACT_PAIRS} pairs"}
    found = replace(found, mean=mean(differences), exact=exact, why=why)
    if n > 1 and spread > rounding:
        return _with_spread(found, differences)
    reason = EQUAL if n > 1 else "one pair has no spread to judge its difference by"
    return replace(
        found,
        sd=0.0 if n > 1 else None,
        why={**why, "t": reason, "pairing": reason, **({} if n > 1 else {"sd": reason})},
        bootstrap=Bootstrap(None, reason),
    )


def _with_spread(found: Comparison, differences: list[float]) -> Comparison:
    n, average, sd = len(differences), mean(differences), standard_deviation(differences)
    t, sds, pairing = average / (sd / math.sqrt(n)), sd_interval(sd, n), pairing_gain(found)
    lonely = "two pairs always correlate +1 or -1" if n == 2 else "an arm is the same for every seed"
    return replace(
        found,
        sd=sd,
        t=t,
        p=student_p(t, n - 1),
        interval=t_interval(differences),
        sd_interval=sds,
        mde=minimum_detectable_effect(sd, n),
        mde_range=(minimum_detectable_effect(sds.low, n), minimum_detectable_effect(sds.high, n)),
        d_z=average / sd,
        pairing=pairing,
        bootstrap=bootstrap(differences),
        why=found.why if pairing else {**found.why, "pairing": lonely},
    )


def pairing_gain(comparison: Comparison) -> Pairing | None:
    """Correlation between the arms and what it bought; None where no correlation is defined."""
    a, b, n = comparison.a, comparison.b, comparison.n
    if n < 3 or not a.sd or not b.sd:
        return None
    covariance = math.fsum(u * v for u, v in zip(_centered(a), _centered(b), strict=True)) / (n - 1)
    sd_ratio = standard_deviation(list(comparison.differences.values())) / math.hypot(a.sd, b.sd)
    return Pairing(
        correlation=max(-1.0, min(1.0, covariance / (a.sd * b.sd))),
        sd_ratio=sd_ratio,
        width_ratio=sd_ratio * student_quantile(0.975, n - 1) / student_quantile(0.975, 2 * n - 2),
    )


def _centered(arm: ArmSummary) -> list[float]:
    assert arm.mean is not None
    return [value - arm.mean for value in arm.by_seed.values() if value is not None]
