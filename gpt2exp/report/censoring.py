"""When a run reaches a target loss: known between two evaluations or not at all, never averaged over the lucky."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from gpt2exp.errors import StorageError
from gpt2exp.report.paired import exact_floor

AXES = ("step", "tokens", "seconds")


class Evaluation(NamedTuple):
    """One evaluation of a run: where it was, and its validation loss in nats a token."""

    step: int
    tokens: int
    val_loss: float
    seconds: float = math.nan


@dataclass(frozen=True)
class Crossing:
    """Where on `axis` a run first had a validation loss at or below `target`.

    kind `interval`: in (lower, upper], the evaluations around it; `left`: in [0, upper], already there at the first
    evaluation; `right`: not by `lower` = `last`, the last evaluation, and `upper` is infinite; `unknown`: nothing
    to tell from, for `reason`. `estimate` interpolates the loss linearly inside the interval. `again_above` lists
    later evaluations above the target, `non_finite` those whose loss was no number (they count as above).
    """

    axis: str
    target: float
    kind: str
    lower: float = math.nan
    upper: float = math.nan
    last: float = math.nan
    estimate: float | None = None
    again_above: tuple[float, ...] = ()
    non_finite: tuple[float, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Bounds:
    """A number known only to lie in [low, high]; `high` is None where it may lie beyond the horizon."""

    low: float
    high: float | None


@dataclass(frozen=True)
class ReachSummary:
    """One arm: how many of `n` runs reached the target by `horizon`, and when.

    `mean` is the restricted mean, E[min(T, horizon)], a Kaplan-Meier area; a run that did not reach the target
    counts with the whole horizon. `median` is where half of the runs have reached it, None if fewer did. Bounds:
    each crossing at the lower and at the upper end of its interval. `why` says what keeps both from being defined.
    """

    arm: str
    by_seed: Mapping[int, Crossing]
    n: int
    reached: int
    horizon: float | None
    mean: Bounds | None = None
    median: Bounds | None = None
    why: str = ""


@dataclass(frozen=True)
class ReachComparison:
    """Which arm reached the target first, by seed: `a`, `b`, or `undecided` where the evaluations cannot tell.

    `p` is the two-sided sign test over the decided pairs, `floor` the smallest that their number allows.
    `mean_difference` is the restricted mean of a minus that of b. An incomplete pair leaves all three None.
    """

    endpoint: str
    a: ReachSummary
    b: ReachSummary
    first: Mapping[int, str]
    incomplete: tuple[str, ...] = ()
    p: float | None = None
    floor: float | None = None
    mean_difference: Bounds | None = None
    no_p: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def test(self) -> str:
        """The test that `p` comes from."""
        return "sign test"

    @property
    def n(self) -> int:
        """Decided pairs: those that the p-value rests on."""
        return self.counts.get("a", 0) + self.counts.get("b", 0)


def crossing(rows: Sequence[Evaluation], target: float, axis: str = "step") -> Crossing:
    """First crossing of `target` in one run's evaluations, which must be in order.

    Raises:
        StorageError: evaluations out of order or repeated.
    """
    assert axis in AXES
    where = [float(getattr(row, axis)) for row in rows]
    if not rows or not all(map(math.isfinite, where)):
        return Crossing(axis, target, "unknown", reason=f"no {axis} recorded" if rows else "no evaluation")
    _demand_order(where, axis)
    reached = [row.val_loss <= target for row in rows]
    broken = tuple(x for x, row in zip(where, rows, strict=True) if not math.isfinite(row.val_loss))
    if not any(reached):
        return Crossing(axis, target, "right", where[-1], math.inf, where[-1], non_finite=broken)
    i = reached.index(True)
    return Crossing(
        axis=axis,
        target=target,
        kind="interval" if i else "left",
        lower=where[i - 1] if i else 0.0,
        upper=where[i],
        last=where[-1],
        estimate=_interpolated(where[i - 1 : i + 1], rows[i - 1 : i + 1], target) if i else None,
        again_above=tuple(x for x, at in zip(where[i:], reached[i:], strict=True) if not at),
        non_finite=broken,
    )


def _demand_order(where: Sequence[float], axis: str) -> None:
    for before, after in pairwise(where):
        if after <= before:
            raise StorageError(
                f"evaluations are out of order: {axis} {after:g} follows {before:g}; rows were repeated or moved, "
                "so the run directory is damaged"
            )


def _interpolated(where: Sequence[float], rows: Sequence[Evaluation], target: float) -> float | None:
    (x0, x1), (y0, y1) = where, (row.val_loss for row in rows)
    return x0 + (y0 - target) / (y0 - y1) * (x1 - x0) if math.isfinite(y0) and math.isfinite(y1) else None


def common_horizon(crossings: Sequence[Crossing]) -> float | None:
    """The last position that every run was evaluated at or beyond; None without known crossings."""
    return min((c.last for c in crossings if c.kind != "unknown"), default=None)


def summarize_reaching(arm: str, by_seed: Mapping[int, Crossing], horizon: float | None = None) -> ReachSummary:
    """Counts, restricted mean and median of one arm up to `horizon` (default: its own common horizon).

    The bounds are exact while no run ends before the horizon. Where one does, Kaplan and Meier's (1958) estimate
    assumes that its end had nothing to do with its loss.
    """
    crossings = list(by_seed.values())
    assert len({(c.axis, c.target) for c in crossings}) <= 1, "one axis and one target an arm"
    horizon = common_horizon(crossings) if horizon is None else horizon
    unknown = [f"seed {seed}: {c.reason}" for seed, c in sorted(by_seed.items()) if c.kind == "unknown"]
    if horizon is None or unknown:
        return ReachSummary(arm, by_seed, len(crossings), 0, horizon, why="; ".join(unknown) or "no runs")
    found = ReachSummary(arm, by_seed, len(crossings), sum(c.upper <= horizon for c in crossings), horizon)
    early, late = _survival(crossings, "lower", horizon), _survival(crossings, "upper", horizon)
    if early is None or late is None:
        return replace(found, why=f"no run that had not reached the target was followed to {horizon:g}")
    soonest = _median(early)
    return replace(
        found,
        mean=Bounds(_area(early, horizon), _area(late, horizon)),
        median=None if soonest is None else Bounds(soonest, _median(late)),
    )


Curve = list[tuple[float, float]]
"""Where the share of runs still above the target drops, and to what."""


def _survival(crossings: Sequence[Crossing], end: str, horizon: float) -> Curve | None:
    """Kaplan-Meier curve with every crossing at one end of its interval; None if it stops before the horizon."""
    observed = [(c.lower, False) if c.kind == "right" else (float(getattr(c, end)), True) for c in crossings]
    share, curve = 1.0, []
    for time in sorted({t for t, event in observed if event and t <= horizon}):
        share *= 1 - observed.count((time, True)) / sum(t >= time for t, _ in observed)
        curve.append((time, share))
    return None if share > 0 and max(t for t, _ in observed) < horizon else curve


def _area(curve: Curve, horizon: float) -> float:
    times = [0.0, *(time for time, _ in curve), horizon]
    shares = [1.0, *(share for _, share in curve)]
    return math.fsum((end - start) * s for start, end, s in zip(times, times[1:], shares, strict=False))


def _median(curve: Curve) -> float | None:
    return next((time for time, share in curve if share <= 0.5 + 1e-12), None)


def compare_reaching(
    endpoint: str, a: tuple[str, Mapping[int, Crossing]], b: tuple[str, Mapping[int, Crossing]]
) -> ReachComparison:
    """Two arms, each as (name, crossings by seed), over their common horizon; one broken pair makes it incomplete."""
    horizon = common_horizon([*a[1].values(), *b[1].values()])
    arms = summarize_reaching(*a, horizon), summarize_reaching(*b, horizon)
    seeds = sorted({*a[1], *b[1]})
    broken = [
        f"seed {seed}: {arm.arm} has {arm.by_seed[seed].reason if seed in arm.by_seed else 'no run'}"
        for seed in seeds
        for arm in arms
        if seed not in arm.by_seed or arm.by_seed[seed].kind == "unknown"
    ]
    if broken or not seeds:
        return ReachComparison(endpoint, *arms, {}, tuple(broken), no_p="; ".join(broken) or "no pairs")
    first = {seed: which_first(a[1][seed], b[1][seed]) for seed in seeds}
    counts = {name: list(first.values()).count(name) for name in ("a", "b", "undecided")}
    decided = counts["a"] + counts["b"]
    return ReachComparison(
        endpoint,
        *arms,
        first,
        p=sign_test(counts["a"], counts["b"]) if decided else None,
        floor=exact_floor(decided) if decided else None,
        mean_difference=_difference(arms[0].mean, arms[1].mean),
        no_p="" if decided else "no pair is decided",
        counts=counts,
    )


def which_first(a: Crossing, b: Crossing) -> str:
    """`a`, `b`, or `undecided` where the two intervals overlap or neither run reached the target."""
    return "a" if _before(a, b) else "b" if _before(b, a) else "undecided"


def _before(early: Crossing, late: Crossing) -> bool:
    """An interval leaves its lower end out, so touching intervals are decided; `left` ones include it."""
    return early.upper < late.lower or (early.upper == late.lower and late.kind != "left")


def sign_test(first: int, second: int) -> float:
    """Two-sided exact sign test (Arbuthnott 1710; Dixon and Mood 1946) of `first` against `second` decided pairs."""
    n = first + second
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(min(first, second) + 1)) / (1 << n))


def _difference(a: Bounds | None, b: Bounds | None) -> Bounds | None:
    if a is None or b is None or a.high is None or b.high is None:
        return None
    return Bounds(a.low - b.high, a.high - b.low)
