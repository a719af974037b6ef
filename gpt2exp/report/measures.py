"""Endpoints of runs: their values by arm and seed, compared where the runs may be, and judged together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpt2exp.errors import StorageError
from gpt2exp.report.censoring import (
    AXES,
    Crossing,
    ReachComparison,
    common_horizon,
    compare_reaching,
    crossing,
    summarize_reaching,
)
from gpt2exp.report.endpoints import ENDPOINTS
from gpt2exp.report.findings import EndpointFinding, ReachFinding
from gpt2exp.report.judgement import Judgement, judge
from gpt2exp.report.runs import Run
from gpt2exp.report.statistics import ArmSummary, Comparison, compare, summarize

REACHING = {"step": "steps_to_target", "tokens": "tokens_to_target", "seconds": "seconds_to_target"}
"""Axis -> endpoint."""
TITLES = {
    "final_val_loss": "final validation loss",
    "final_token_error": "final token error",
    "final_train_loss": "training loss of the last step",
    "steps_to_target": "steps to the target",
    "tokens_to_target": "tokens to the target",
    "seconds_to_target": "seconds to the target",
}


@dataclass(frozen=True)
class Declared:
    """What of a plan decides the statistics: arms and seeds in order, endpoints, the target loss."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    primary: str
    secondary: tuple[str, ...] = ()
    target: float | None = None

    def __post_init__(self) -> None:
        for name in self.endpoints:
            if name not in ENDPOINTS:
                raise StorageError(f"the plan names endpoint {name}, unknown to this version (known: {[*ENDPOINTS]})")

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The primary one, then the secondary ones."""
        return (self.primary, *self.secondary)


def value_of(run: Run, endpoint: str) -> float | None:
    """An endpoint of one run at its last step; None where it has none there, NaN where it was not finite."""
    return _VALUES[endpoint](run)


def _token_error(run: Run) -> float | None:
    """From the last step's evaluation, else from its probe."""
    if run.final("token_error") is not None or not run.tracking or run.tracking[-1]["step"] != run.num_steps:
        return run.final("token_error")
    found = run.tracking[-1]["token_error"]
    return None if found is None else float(found)


def _train_loss(run: Run) -> float | None:
    if run.step != run.num_steps:
        return None
    loss = run.metrics[-1]["loss"]
    return float("nan") if loss is None else float(loss)


_VALUES: Mapping[str, Callable[[Run], float | None]] = {
    "final_val_loss": lambda run: run.final("val_loss"),
    "final_token_error": _token_error,
    "final_train_loss": _train_loss,
}


def final_endpoints(
    by_arm: Mapping[str, Sequence[Run]], declared: Declared, *, pooled: bool, compared: bool
) -> tuple[EndpointFinding, ...]:
    """Endpoints taken at the last step: declared ones first, in their order, then the others that have values.

    Args:
        by_arm: every arm's runs, at most one a seed.
        declared: only declared endpoints are compared; the rest is description.
        pooled: whether runs of an arm may be averaged; else means and SDs are left out.
        compared: whether arms may be compared.
    """
    names = list(dict.fromkeys([*(name for name in declared.endpoints if name in _VALUES), *_VALUES]))
    found = [_final_endpoint(by_arm, name, declared, pooled, compared) for name in names]
    return tuple(f for f in found if f.name in declared.endpoints or any(_known(arm) for arm in f.arms))


def _final_endpoint(
    by_arm: Mapping[str, Sequence[Run]], name: str, declared: Declared, pooled: bool, compared: bool
) -> EndpointFinding:
    arms = [_summary(arm, by_arm.get(arm, ()), name, declared, pooled) for arm in declared.arms]
    unit = ENDPOINTS[name]
    others = arms[1:] if compared and name in declared.endpoints else []
    comparisons = tuple(compare(TITLES[name], arms[0], other, unit=unit) for other in others)
    return EndpointFinding(name, unit, name == declared.primary, tuple(arms), comparisons)


def _summary(arm: str, runs: Sequence[Run], name: str, declared: Declared, pooled: bool) -> ArmSummary:
    values = {run.seed: value_of(run, name) for run in runs}
    summary = summarize(arm, values, declared.seeds)
    return summary if pooled else replace(summary, mean=None, sd=None)


def _known(arm: ArmSummary) -> bool:
    return any(value is not None for value in arm.by_seed.values())


def reaching(runs: Sequence[Run], declared: Declared, *, pooled: bool, compared: bool) -> tuple[ReachFinding, ...]:
    """Where each run reached the target, by axis: steps, seconds, and whatever else is declared.

    Arms are summarized if `pooled` and compared, on the declared axes, if `compared`.
    """
    if declared.target is None:
        return ()
    wanted = {axis for axis, name in REACHING.items() if name in declared.endpoints} | {"step", "seconds"}
    return tuple(_reach(runs, declared, axis, declared.target, pooled, compared) for axis in AXES if axis in wanted)


def _reach(
    runs: Sequence[Run], declared: Declared, axis: str, target: float, pooled: bool, compared: bool
) -> ReachFinding:
    crossings = {(run.arm, run.seed): crossing(run.evaluation_records(), target, axis) for run in runs}
    by_arm: dict[str, dict[int, Crossing]] = {
        arm: {seed: found for (name, seed), found in crossings.items() if name == arm} for arm in declared.arms
    }
    horizon = common_horizon(list(crossings.values()))
    arms = [summarize_reaching(arm, by_arm[arm], horizon) for arm in declared.arms if pooled and by_arm[arm]]
    name, first = REACHING[axis], declared.arms[0]
    others = declared.arms[1:] if compared and name in declared.endpoints else ()
    comparisons = [compare_reaching(TITLES[name], (first, by_arm[first]), (arm, by_arm[arm])) for arm in others]
    return ReachFinding(axis, target, crossings, tuple(arms), tuple(comparisons))


def judged(
    declared: Declared, endpoints: Sequence[EndpointFinding], reached: Sequence[ReachFinding]
) -> Judgement | None:
    """Verdicts on the declared endpoints; None where nothing was compared.

    The primary comparison is that of the first two arms. With more arms, the first arm's other comparisons on the
    primary endpoint are adjusted among the secondary ones: one p-value, and no more, goes unadjusted.
    """
    compared: dict[str, Sequence[Comparison | ReachComparison]] = {f.name: f.comparisons for f in endpoints}
    compared |= {REACHING[finding.axis]: finding.comparisons for finding in reached}
    found = [comparison for name in declared.endpoints for comparison in compared.get(name, ())]
    if len(declared.arms) > 2:
        found = [replace(c, endpoint=f"{c.endpoint} ({c.a.arm} - {c.b.arm})") for c in found]
    return judge(found[0], found[1:]) if found else None
