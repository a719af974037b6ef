"""What was measured, as tables: by run, by arm, by pair, time to the target, and beside foreign curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpt2exp.report.cells import AXES, MISSING, amount, at, bounds, duration, fixed, listed, spread
from gpt2exp.report.censoring import Bounds, Crossing, ReachComparison, ReachSummary
from gpt2exp.report.curves import at_tokens
from gpt2exp.report.findings import EndpointFinding, Findings, Foreign, Kind, ReachFinding, Requested
from gpt2exp.report.measures import TITLES
from gpt2exp.report.paired import mean
from gpt2exp.report.runs import Run
from gpt2exp.report.sentences import describe_crossing
from gpt2exp.report.statistics import ArmSummary, Comparison
from gpt2exp.report.table import Record, Table, chosen, without_empty


@dataclass(frozen=True)
class Entry:
    """One row of a table of runs: a run, what was asked for, or both."""

    label: str
    arm: str
    seed: int
    status: str
    step: int
    num_steps: int | None
    run: Run | None

    @property
    def record(self) -> dict[str, Any]:
        """What every CSV row about a run begins with."""
        return {"run": self.label, "arm": self.arm, "seed": self.seed}

    def final(self, column: str) -> float | None:
        """The last step's evaluation, None where there is none."""
        return self.run.final(column) if self.run else None


def entries(findings: Findings) -> list[Entry]:
    """Every planned run, there or not; without a plan, every run."""
    if findings.kind is not Kind.protocol:
        return [
            Entry(label(findings, run), run.arm, run.seed, run.status, run.step, run.num_steps, run)
            for run in findings.runs
        ]
    runs = {run.path.resolve(): run for run in findings.runs}
    return [_requested(wanted, runs.get((findings.folder / wanted.folder).resolve())) for wanted in findings.requested]


def _requested(wanted: Requested, run: Run | None) -> Entry:
    return Entry(wanted.folder, wanted.arm, wanted.seed, wanted.status, wanted.step, wanted.num_steps, run)


def label(findings: Findings, run: Run) -> str:
    """A run's directory below the report's folder; its own name where it lies elsewhere."""
    path, folder = run.path.resolve(), findings.folder.resolve()
    return path.relative_to(folder).as_posix() if path != folder and path.is_relative_to(folder) else run.name


def told_apart_by_seed(findings: Findings) -> bool:
    """Whether arm and seed together tell the runs apart, so that no directory needs to be named."""
    named = [(entry.arm, entry.seed) for entry in entries(findings)]
    return len(set(named)) == len(named)


def comparisons(findings: Findings) -> list[tuple[EndpointFinding, Comparison]]:
    """Paired comparisons that may be shown: none where runs are missing or may not be subtracted."""
    if not findings.comparable or not findings.complete:
        return []
    return [(endpoint, found) for endpoint in findings.endpoints for found in endpoint.comparisons]


def reach_comparisons(findings: Findings) -> list[tuple[str, ReachComparison]]:
    """Comparisons of times to the target that may be shown, with their axis."""
    if not findings.comparable or not findings.complete:
        return []
    return [(reach.axis, found) for reach in findings.reaching for found in reach.comparisons]


def by_run(findings: Findings) -> Table | None:
    """Status, steps, final loss and token error, time, and where the target was reached, run by run."""
    shown, crossed = entries(findings), _crossings(findings, "step")
    if not shown:
        return None
    target = f"val loss {findings.reaching[0].target:g}" if findings.reaching else "target"
    wanted = {
        "run": findings.kind is not Kind.protocol or not told_apart_by_seed(findings),
        "last val loss (nats)": any(entry.final("val_loss") is None for entry in shown),
        target: bool(findings.reaching),
    }
    rows = [{**_run_cells(entry), target: _crossing_cell(crossed.get((entry.arm, entry.seed)))} for entry in shown]
    columns, cells = chosen([(column, wanted.get(column, True)) for column in rows[0]], rows)
    return Table(
        key="runs",
        title="Results by run",
        columns=columns,
        rows=cells,
        note="Final values are those of the evaluation after the last step of the budget. Elapsed time is that of the "
        "kept trajectory, evaluations and checkpoints included: work that was done twice counts once.",
        data=tuple(_run_record(entry, crossed.get((entry.arm, entry.seed))) for entry in shown),
    )


def _run_cells(entry: Entry) -> dict[str, str]:
    budget = MISSING if entry.num_steps is None else f"{entry.num_steps:,}"
    return {
        "run": entry.label,
        "seed": str(entry.seed),
        "arm": entry.arm,
        "status": entry.status,
        "steps": f"{entry.step:,} / {budget}" if entry.run else MISSING,
        "final val loss (nats)": fixed(entry.final("val_loss")),
        "last val loss (nats)": _last_loss(entry.run),
        "final token error": fixed(entry.final("token_error")),
        "elapsed (h:mm:ss)": duration(entry.run.elapsed if entry.run else None),
    }


def _last_loss(run: Run | None) -> str:
    found = run.evaluation_records() if run else []
    return f"{fixed(found[-1].val_loss)} at step {found[-1].step:,}" if found else MISSING


def _run_record(entry: Entry, crossing: Crossing | None) -> Record:
    return {
        **entry.record,
        "status": entry.status,
        "steps": entry.step if entry.run else None,
        "num_steps": entry.num_steps,
        "final_val_loss": entry.final("val_loss"),
        "final_token_error": entry.final("token_error"),
        "elapsed_seconds": entry.run.elapsed if entry.run else None,
        **({f"target_{key}": value for key, value in _crossing_record(crossing).items()} if crossing else {}),
    }


def _crossings(findings: Findings, axis: str) -> Mapping[tuple[str, int], Crossing]:
    """By arm and seed; nothing where two runs share both, since a crossing then belongs to either."""
    found = {reach.axis: reach.crossings for reach in findings.reaching}
    return found.get(axis, {}) if told_apart_by_seed(findings) else {}


def _crossing_cell(crossing: Crossing | None) -> str:
    if crossing is None or crossing.kind == "unknown":
        return MISSING if crossing is None else f"{MISSING} ({crossing.reason})"
    return describe_crossing(crossing)


def _crossing_record(crossing: Crossing) -> Record:
    unknown = crossing.kind == "unknown"
    ends = {key: None if unknown else getattr(crossing, key) for key in ("lower", "upper", "last")}
    return {"val_loss": crossing.target, "kind": crossing.kind, **ends, "interpolated": crossing.estimate}


def by_arm(findings: Findings) -> Table | None:
    """n, mean and SD of every endpoint, arm by arm; only runs of one plan are averaged."""
    if findings.kind is not Kind.protocol or not findings.endpoints:
        return None
    found = [(endpoint, arm) for endpoint in findings.endpoints for arm in endpoint.arms]
    missing, broken = "seeds without a value", "seeds not finite"
    rows = tuple(_arm_row(endpoint, arm) for endpoint, arm in found)
    columns, rows = without_empty(("arm", "endpoint", "n", "mean", "SD", missing, broken), rows, missing, broken)
    return Table(
        key="arms",
        title="Arms",
        columns=columns,
        rows=rows,
        note="SD: n - 1 in the denominator. An arm with a value that is not finite has no mean: the rest would "
        "flatter it.",
        data=tuple(
            {"endpoint": e.name, "unit": e.unit, "arm": a.arm, "n": a.n, "mean": a.mean, "sd": a.sd,
             "missing_seeds": " ".join(map(str, a.missing)), "non_finite_seeds": " ".join(map(str, a.non_finite))}
            for e, a in found
        ),
    )  # fmt: skip


def _arm_row(endpoint: EndpointFinding, arm: ArmSummary) -> tuple[str, ...]:
    average, sd = amount(arm.mean, endpoint.unit), spread(arm.sd)
    return arm.arm, titled(endpoint), str(arm.n), average, sd, listed(arm.missing), listed(arm.non_finite)


def titled(endpoint: EndpointFinding) -> str:
    """An endpoint with its unit, marked where it is the primary one."""
    unit = f" ({endpoint.unit})" if endpoint.unit else ""
    return f"{TITLES.get(endpoint.name, endpoint.name)}{unit}{', primary' if endpoint.primary else ''}"


def by_pair(findings: Findings) -> Table | None:
    """Every difference that the paired statistics are computed from."""
    found = [(e, c, seed) for e, c in comparisons(findings) for seed in sorted({*c.a.by_seed, *c.b.by_seed})]
    if not found:
        return None
    arms = {(c.a.arm, c.b.arm) for _, c, _ in found}
    first, second = arms.pop() if len(arms) == 1 else ("first arm", "second arm")
    return Table(
        key="pairs",
        title="Differences within pairs",
        columns=("seed", "endpoint", "first - second", first, second, "difference"),
        rows=tuple(_pair_row(*pair) for pair in found),
        note="Always the first arm minus the second, of the same seed. Negative: the first arm is lower.",
        data=tuple(
            {"endpoint": e.name, "unit": e.unit, "first": c.a.arm, "second": c.b.arm, "seed": seed,
             "first_value": c.a.by_seed.get(seed), "second_value": c.b.by_seed.get(seed),
             "difference": c.differences.get(seed)}
            for e, c, seed in found
        ),
    )  # fmt: skip


def _pair_row(endpoint: EndpointFinding, c: Comparison, seed: int) -> tuple[str, ...]:
    values = [amount(arm.by_seed.get(seed), endpoint.unit) for arm in (c.a, c.b)]
    difference = amount(c.differences.get(seed), endpoint.unit, signed=True)
    return (str(seed), titled(endpoint), c.direction, *values, difference)


def reaching(findings: Findings) -> Table | None:
    """Steps, tokens and seconds to the target as censored data, arm by arm."""
    found = [(reach, arm) for reach in findings.reaching for arm in reach.arms]
    if findings.kind is not Kind.protocol or not found:
        return None
    columns, rows = without_empty(
        ("arm", "counted in", "val loss (nats)", "reached", "horizon", "restricted mean", "median", "remark"),
        tuple(_reach_row(reach, arm) for reach, arm in found),
        "remark",
    )
    return Table(
        key="reaching",
        title="Time to the target",
        columns=columns,
        rows=rows,
        note="The restricted mean counts a run that did not reach the target with the whole horizon, the earliest end "
        "of all runs; nothing is averaged over those that reached it. Bounds: every crossing at the lower and at the "
        "upper end of the evaluations around it.",
        data=tuple(
            {"axis": reach.axis, "target": reach.target, "arm": arm.arm, "n": arm.n, "reached": arm.reached,
             "horizon": arm.horizon, **_ends("restricted_mean", arm.mean), **_ends("median", arm.median)}
            for reach, arm in found
        ),
    )  # fmt: skip


def _reach_row(reach: ReachFinding, arm: ReachSummary) -> tuple[str, ...]:
    found = (at(reach.axis, arm.horizon), bounds(reach.axis, arm.mean), _median(reach.axis, arm.mean, arm.median))
    return (arm.arm, AXES[reach.axis], f"{reach.target:g}", f"{arm.reached} of {arm.n}", *found, arm.why or MISSING)


def _median(axis: str, average: Bounds | None, median: Bounds | None) -> str:
    return MISSING if average is None else "not reached" if median is None else bounds(axis, median)


def _ends(name: str, found: Bounds | None) -> Record:
    ends = asdict(found) if found else {"low": None, "high": None}
    return {f"{name}_{end}": value for end, value in ends.items()}


def crossings(findings: Findings) -> Table | None:
    """Where each run reached the target, on every axis, or that it did not by its last evaluation."""
    axes = {reach.axis: _crossings(findings, reach.axis) for reach in findings.reaching}
    if not any(axes.values()):
        return None
    shown = entries(findings)
    cells = [[_crossing_cell(found.get((entry.arm, entry.seed))) for found in axes.values()] for entry in shown]
    return Table(
        key="crossings",
        title="Where each run reached the target",
        columns=("seed", "arm", *axes),
        rows=tuple((str(entry.seed), entry.arm, *row) for entry, row in zip(shown, cells, strict=True)),
        note="Known only between two evaluations. The interpolated figure enters no statistic.",
        data=tuple(
            {**entry.record, "axis": axis, **_crossing_record(found[entry.arm, entry.seed])}
            for entry in shown
            for axis, found in axes.items()
            if (entry.arm, entry.seed) in found
        ),
    )


def evaluations(findings: Findings) -> Table | None:
    """Validation loss at every evaluation, one column a run."""
    runs = {_column(findings, run): run.evaluation_records() for run in findings.runs}
    losses = {(row.step, row.tokens, name): row.val_loss for name, rows in runs.items() for row in rows}
    if not losses:
        return None
    where = sorted({(step, tokens) for step, tokens, _ in losses})
    return Table(
        key="evaluations",
        title="Validation loss at every evaluation (nats)",
        columns=("step", "tokens", *runs),
        rows=tuple((f"{s:,}", f"{t:,}", *(fixed(losses.get((s, t, name))) for name in runs)) for s, t in where),
        data=tuple(record for run in findings.runs for record in _evaluation_records(findings, run)),
    )


def _evaluation_records(findings: Findings, run: Run) -> list[Record]:
    named = {"run": label(findings, run), "arm": run.arm, "seed": run.seed}
    return [
        {**named, **found._asdict(), "token_error": row.get("token_error")}
        for row, found in zip(run.evaluations, run.evaluation_records(), strict=True)
    ]


def _column(findings: Findings, run: Run) -> str:
    if findings.kind is Kind.protocol and told_apart_by_seed(findings):
        return f"{run.arm}, seed {run.seed}"
    return label(findings, run)


def foreign_curve(findings: Findings, foreign: Foreign, index: int) -> Table:
    """A foreign curve, and beside it what our runs had after as many tokens; the CSV holds all of its points."""
    ours, theirs = _beside(findings, foreign)
    ours = ours if theirs else {}
    rows = sorted(theirs.items()) or [(point.tokens, fixed(point.val_loss)) for point in foreign.points]
    remark = f"Set side by side at equal token counts; all {len(foreign.points)} points of the curve are in the CSV."
    if not theirs:
        remark = "No run has an evaluation at or between its token counts." if findings.runs else ""
    return Table(
        key=f"curve_{index}",
        title=f"Validation loss (nats) beside: {foreign.label}",
        columns=("tokens", foreign.label, *ours),
        rows=tuple(
            (f"{tokens:,.0f}", cell, *(fixed(found.get(tokens)) for found in ours.values())) for tokens, cell in rows
        ),
        note=f"Source: {foreign.source}. Optimizer: {foreign.optimizer}. {remark}".rstrip(),
        data=tuple(
            {"label": foreign.label, "optimizer": foreign.optimizer, "source": foreign.source, **asdict(point)}
            for point in foreign.points
        ),
    )


Beside = tuple[dict[str, dict[float, float]], dict[float, str]]


def _beside(findings: Findings, foreign: Foreign) -> Beside:
    """Column -> tokens -> our loss, and tokens -> the foreign loss as text.

    A protocol's column is the mean over all runs of an arm where each of them has a value, else a column is a run.
    """
    found = {_column(findings, run): at_tokens(run, foreign) for run in findings.runs}
    theirs = {m.at: fixed(m.b) + (" (interpolated)" if m.interpolated else "") for ms in found.values() for m in ms}
    ours = {column: {m.at: m.a for m in matches} for column, matches in found.items()}
    if findings.kind is not Kind.protocol or not told_apart_by_seed(findings):
        return ours, theirs
    arms = {arm: [ours[_column(findings, run)] for run in findings.runs if run.arm == arm] for arm in findings.arms}
    return {_mean_of(arm, runs): _mean_curve(runs) for arm, runs in arms.items() if runs}, theirs


def _mean_of(arm: str, runs: Sequence[Mapping[float, float]]) -> str:
    return f"{arm}, mean of {len(runs)}" if len(runs) > 1 else arm


def _mean_curve(runs: Sequence[Mapping[float, float]]) -> dict[float, float]:
    return {at: mean([run[at] for run in runs]) for at in set.intersection(*map(set, runs))}
