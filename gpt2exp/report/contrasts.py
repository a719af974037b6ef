"""The paired statistics as one table: a column a comparison, a line a statistic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpt2exp.report.cells import AXES, MISSING, amount, bounds, spread
from gpt2exp.report.censoring import Bounds, ReachComparison
from gpt2exp.report.findings import EndpointFinding, Findings
from gpt2exp.report.judgement import Judgement, Outcome
from gpt2exp.report.paired import ALPHA, Interval
from gpt2exp.report.sentences import counted, p_value
from gpt2exp.report.statistics import Comparison
from gpt2exp.report.table import Record, Table, without_empty
from gpt2exp.report.tables import comparisons, reach_comparisons, titled


@dataclass(frozen=True)
class Column:
    """One comparison, its unit and the verdict on it."""

    endpoint: EndpointFinding
    found: Comparison
    outcome: Outcome | None

    def amount(self, value: float | None, *, signed: bool = False) -> str:
        """A value in the endpoint's unit."""
        return amount(value, self.endpoint.unit, signed=signed)


def by_comparison(findings: Findings) -> Table | None:
    """Difference, interval, tests and their limits of every paired comparison."""
    shown = [Column(e, c, _outcome(findings.judgement, c)) for e, c in comparisons(findings)]
    if not shown:
        return None
    lines = [(name, *map(line, shown)) for name, line in LINES.items()]
    return Table(
        key="comparisons",
        title="Paired comparisons",
        columns=("statistic", *(_heading(column.endpoint, column.found) for column in shown)),
        rows=tuple(line for line in lines if any(cell != MISSING for cell in line[1:])),
        note="Minimum detectable effect: the true difference that this many pairs with this SD find in 80 % of "
        "protocols (two-sided 5 %). Holm's adjustment is among the secondary endpoints; the primary one is judged by "
        "its own p.",
        data=tuple(map(_record, shown)),
    )


def _heading(endpoint: EndpointFinding, c: Comparison) -> str:
    return f"{titled(endpoint)}: {c.direction}"


def _outcome(judgement: Judgement | None, c: Comparison | ReachComparison) -> Outcome | None:
    """The verdict on a comparison: of more than two arms, its name holds both."""
    judged = (judgement.primary, *judgement.secondary) if judgement else ()
    names = (c.endpoint, f"{c.endpoint} ({c.a.arm} - {c.b.arm})")
    return next((outcome for outcome in judged if outcome.endpoint in names), None)


def _interval(column: Column, found: Interval | None) -> str:
    return MISSING if found is None else " to ".join(column.amount(x, signed=True) for x in (found.low, found.high))


def _t_test(column: Column) -> str:
    c = column.found
    return MISSING if c.p is None or c.t is None else f"{p_value(c.p)} (t = {c.t:.2f}, {c.n - 1} df)"


def _adjusted(outcome: Outcome | None) -> str:
    if outcome is None or outcome.adjusted is None:
        return MISSING
    return "not adjusted (primary)" if outcome.primary else p_value(outcome.adjusted)


def _exact(column: Column) -> str:
    found = column.found.exact
    return MISSING if found is None else f"{p_value(found.p)} ({found.extreme:,} of {found.assignments:,} sign flips)"


def _floor(column: Column) -> str:
    c = column.found
    if c.exact is None:
        return MISSING
    cannot = f"; {ALPHA:g} cannot be reached, whatever the data" if c.exact.floor > ALPHA else ""
    return f"{c.exact.floor:.2g}, the smallest that {counted(c.n, 'pair')} allow{'s' if c.n == 1 else ''}{cannot}"


def _mde_range(column: Column) -> str:
    ends = column.found.mde_range
    return MISSING if ends is None else " to ".join(map(spread, ends))


def _correlation(column: Column) -> str:
    pairing = column.found.pairing
    return MISSING if pairing is None else f"{pairing.correlation:+.2f}"


def _width(column: Column) -> str:
    pairing = column.found.pairing
    return MISSING if pairing is None else f"{pairing.width_ratio:.2f} of an unpaired one's width"


def _bootstrap(column: Column) -> str:
    found = column.found.bootstrap
    return _interval(column, found.interval) if found.interval else f"none: {found.reason}"


def _not_computed(column: Column) -> str:
    return "; ".join(dict.fromkeys([*column.found.incomplete, *column.found.why.values()])) or MISSING


LINES: Mapping[str, Callable[[Column], str]] = {
    "complete pairs": lambda column: str(column.found.n),
    "mean difference": lambda column: column.amount(column.found.mean, signed=True),
    "SD of the differences": lambda column: spread(column.found.sd),
    "95 % t interval": lambda column: _interval(column, column.found.interval),
    "paired t test": _t_test,
    "Holm-adjusted p": lambda column: _adjusted(column.outcome),
    "exact sign-flip test": _exact,
    "floor of the exact p": _floor,
    "minimum detectable effect": lambda column: spread(column.found.mde),
    "the same over the SD's 95 % interval": _mde_range,
    "d_z (mean / SD)": lambda column: MISSING if column.found.d_z is None else f"{column.found.d_z:+.2f}",
    "correlation of the arms over seeds": _correlation,
    "paired interval": _width,
    "bootstrap interval": _bootstrap,
    "not computed, because": _not_computed,
    "verdict": lambda column: column.outcome.verdict if column.outcome else MISSING,
}


def _record(column: Column) -> Record:
    endpoint, c, outcome = column.endpoint, column.found, column.outcome
    return {
        "endpoint": endpoint.name,
        "unit": endpoint.unit,
        "primary": endpoint.primary,
        "first": c.a.arm,
        "second": c.b.arm,
        "status": c.status,
        "n": c.n,
        "mean_difference": c.mean,
        "sd": c.sd,
        **_ends("interval", c.interval),
        "t": c.t,
        "p": c.p,
        "p_holm": None if outcome is None or outcome.primary else outcome.adjusted,
        "p_exact": c.exact.p if c.exact else None,
        "p_exact_floor": c.exact.floor if c.exact else None,
        "mde": c.mde,
        "mde_low": c.mde_range[0] if c.mde_range else None,
        "mde_high": c.mde_range[1] if c.mde_range else None,
        "d_z": c.d_z,
        **(asdict(c.pairing) if c.pairing else {"correlation": None, "sd_ratio": None, "width_ratio": None}),
        **_ends("bootstrap", c.bootstrap.interval),
        "verdict": outcome.verdict if outcome else None,
        "not_computed": "; ".join([*c.incomplete, *c.why.values()]),
    }


def _ends(name: str, found: Interval | None) -> dict[str, Any]:
    return {f"{name}_low": found.low if found else None, f"{name}_high": found.high if found else None}


def who_was_first(findings: Findings) -> Table | None:
    """Which arm reached the target first, pair by pair counted, and the sign test over it."""
    shown = [(axis, c, _outcome(findings.judgement, c)) for axis, c in reach_comparisons(findings)]
    if not shown:
        return None
    columns, rows = without_empty(
        ("first - second", "counted in", "first arm earlier", "second arm earlier", "undecided", "sign test",
         "floor of its p", "Holm-adjusted p", "difference of restricted means", "remark"),
        tuple(_reach_row(axis, c, outcome) for axis, c, outcome in shown),
        "remark",
    )  # fmt: skip
    return Table(
        key="first_to_target",
        title="Which arm reached the target first",
        columns=columns,
        rows=rows,
        note="Undecided: the evaluations around the two crossings overlap, or neither run reached it.",
        data=tuple(_reach_record(axis, c, outcome) for axis, c, outcome in shown),
    )  # fmt: skip


def _reach_row(axis: str, c: ReachComparison, outcome: Outcome | None) -> tuple[str, ...]:
    counts = [str(c.counts[side]) if c.counts else MISSING for side in ("a", "b", "undecided")]
    p, floor = MISSING if c.p is None else p_value(c.p), MISSING if c.floor is None else f"{c.floor:.2g}"
    means = bounds(axis, c.mean_difference)
    return (f"{c.a.arm} - {c.b.arm}", AXES[axis], *counts, p, floor, _adjusted(outcome), means, c.no_p or MISSING)


def _reach_record(axis: str, c: ReachComparison, outcome: Outcome | None) -> Record:
    difference = c.mean_difference or Bounds(float("nan"), None)
    known = c.mean_difference is not None
    return {
        "axis": axis,
        "first": c.a.arm,
        "second": c.b.arm,
        **{f"{side}_reached_first": c.counts.get(key) for side, key in (("first", "a"), ("second", "b"))},
        "undecided": c.counts.get("undecided"),
        "p_sign": c.p,
        "p_sign_floor": c.floor,
        "p_holm": None if outcome is None or outcome.primary else outcome.adjusted,
        "restricted_mean_difference_low": difference.low if known else None,
        "restricted_mean_difference_high": difference.high,
        "verdict": outcome.verdict if outcome else None,
        "not_computed": c.no_p,
    }
