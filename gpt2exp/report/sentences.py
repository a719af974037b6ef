"""Statistics in plain words: what n pairs say, what they cannot say, and no more than that."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpt2exp.report.censoring import Bounds, Crossing, ReachComparison, ReachSummary
from gpt2exp.report.judgement import Judgement, Outcome
from gpt2exp.report.paired import ALPHA, pairs_for_exact
from gpt2exp.report.statistics import ArmSummary, Comparison

SCOPE = (
    "All of this is about repeating the run with other seeds at this model, data, schedule and tuning; "
    "it says nothing about other settings."
)


def number(value: float) -> str:
    """Five significant digits, or a whole number with thousands separated."""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.5g}"


def rough(value: float) -> str:
    """Three significant digits: a spread, a bound or an effect is not known better."""
    return number(float(f"{value:.3g}"))


def p_value(p: float) -> str:
    """`p = 0.031`, or `p < 0.0001`."""
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def counted(count: int, noun: str) -> str:
    """`1 pair`, `3 pairs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def explain(comparison: Comparison) -> list[str]:
    """A comparison, sentence by sentence."""
    c = comparison
    if c.status == "empty":
        return [f"{c.endpoint}: there are no pairs, so nothing is compared."]
    if c.status == "incomplete":
        return [
            f"{c.endpoint}: the comparison is incomplete, so no paired statistic is computed "
            f"({'; '.join(c.incomplete)}). Dropping a pair would choose the result by its outcome."
        ]
    spread = [*_interval(c), *_detectable(c), *_pairing(c)] if c.p is not None else _no_spread(c)
    return [_difference(c), *spread, *_exact(c), _bootstrap(c), SCOPE]


def explain_arm(arm: ArmSummary, unit: str = "") -> str:
    """One arm's mean and SD with n, and what is missing from them."""
    text = f"{arm.arm}: "
    if arm.mean is not None:
        text += f"mean {_with_unit(arm.mean, unit)}"
        text += f", sd {_with_unit(arm.sd, unit, rough)}, n={arm.n}" if arm.sd is not None else f", n={arm.n}, so no sd"
    elif arm.non_finite:
        text += "no mean, because " + _seeds(arm.non_finite) + " not finite and the rest would flatter the arm"
    elif arm.n:
        text += f"no mean: {counted(arm.n, 'value')} that may not be pooled"
    else:
        text += "no values"
    return text + (f"; {_seeds(arm.missing)} missing" if arm.missing else "") + "."


def explain_judgement(judgement: Judgement) -> list[str]:
    """Verdicts on the primary and the secondary endpoints."""
    lines = [f"Primary endpoint, {_verdict(judgement.primary)}"]
    if judgement.secondary:
        lines.append(
            f"{counted(len(judgement.secondary), 'secondary endpoint')}, p-values adjusted by Holm's method among "
            "themselves; the primary endpoint is not adjusted."
        )
    return lines + [f"Secondary endpoint, {_verdict(outcome)}" for outcome in judgement.secondary]


def describe_crossing(crossing: Crossing) -> str:
    """Where one run reached the target, as far as its evaluations tell."""
    c = crossing
    if c.kind == "unknown":
        return f"unknown: {c.reason}"
    text = {
        "right": f"not reached by {_at(c.axis, c.lower)}",
        "left": f"reached at or before {_at(c.axis, c.upper)}, the first evaluation",
        "interval": f"reached after {_at(c.axis, c.lower)} and by {_at(c.axis, c.upper)}",
    }[c.kind]
    if c.estimate is not None:
        text += f" (about {number(c.estimate)} by linear interpolation)"
    if c.again_above:
        text += f"; above it again at {', '.join(_at(c.axis, x) for x in c.again_above)}"
    if c.non_finite:
        text += f"; loss not finite at {', '.join(_at(c.axis, x) for x in c.non_finite)}"
    return text


def explain_reaching(comparison: ReachComparison) -> list[str]:
    """Time to a target over two arms, sentence by sentence."""
    c = comparison
    lines = [_reaching(c.a), _reaching(c.b)]
    if c.incomplete or not c.first:
        return [*lines, f"{c.endpoint}: not compared ({c.no_p})."]
    lines.append(
        f"First to reach it: {c.a.arm} in {c.counts['a']}, {c.b.arm} in {c.counts['b']} of "
        f"{counted(len(c.first), 'pair')}; {c.counts['undecided']} undecided (the evaluations around the crossings "
        "overlap, or neither run reached it)."
    )
    if c.p is not None and c.floor is not None:
        lines.append(
            f"Sign test over {counted(c.n, 'decided pair')}: {p_value(c.p)}; "
            f"with that many no p below {c.floor:.2g} is possible."
        )
    if c.mean_difference is not None:
        lines.append(f"Difference of the restricted means, {c.a.arm} - {c.b.arm}: {_between(c.mean_difference)}.")
    return lines


def _with_unit(value: float, unit: str, written: Callable[[float], str] = number) -> str:
    return f"{written(value)} {unit}".rstrip()


def _seeds(seeds: Sequence[int]) -> str:
    listed = ", ".join(map(str, seeds))
    return f"seed {listed} is" if len(seeds) == 1 else f"seeds {listed} are"


def _at(axis: str, value: float) -> str:
    return {"step": f"step {value:,.0f}", "tokens": f"{value:,.0f} tokens"}.get(axis, f"{value:,.1f} s")


def _difference(c: Comparison) -> str:
    assert c.mean is not None
    lower = sum(difference < 0 for difference in c.differences.values())
    higher = sum(difference > 0 for difference in c.differences.values())
    equal = c.n - lower - higher
    counts = f"{c.a.arm} was lower in {lower} and higher in {higher} of {counted(c.n, 'pair')}"
    tied = f", equal in {equal}" if equal else ""
    return (
        f"{c.endpoint}, {c.direction}: mean difference {_with_unit(c.mean, c.unit, rough)}, n={c.n} "
        f"(negative: {c.a.arm} is lower). {counts}{tied}."
    )


def _no_spread(c: Comparison) -> list[str]:
    lines = [c.why["t"][0].upper() + c.why["t"][1:] + "."]
    if c.n > 1 and not any(c.differences.values()):
        lines.append("Every difference is exactly zero: check that the two arms really are different runs.")
    return lines


def _interval(c: Comparison) -> list[str]:
    assert c.interval is not None and c.p is not None
    low, high = c.interval.low, c.interval.high
    between = f"{rough(low)} to {_with_unit(high, c.unit, rough)}"
    lines = [
        f"{100 * c.interval.level:.0f} % t interval {between}, {p_value(c.p)}, taking the differences as normally "
        f"distributed, which {counted(c.n, 'pair')} cannot check."
    ]
    if low <= 0 <= high:
        lines.append(
            "The interval contains zero: no difference is shown, and that there is none is not shown either; "
            "every value inside it remains possible."
        )
    elif c.n < pairs_for_exact():
        lines.append("The interval excludes zero, but only through the assumption of normality: see the exact test.")
    else:
        lines.append("The interval excludes zero.")
    return lines


def _exact(c: Comparison) -> list[str]:
    if c.exact is None:
        return [f"No exact test: {c.why['exact']}."]
    line = f"Exact sign-flip test: {p_value(c.exact.p)}; with n={c.n} {'pair' if c.n == 1 else 'pairs'} "
    line += f"no exact p below {c.exact.floor:.2g} is possible"
    if c.exact.floor > ALPHA:
        line += f", so it cannot reach {ALPHA:g}, whatever the data ({pairs_for_exact()} pairs could)"
    return [line + "."]


def _detectable(c: Comparison) -> list[str]:
    assert c.mde is not None and c.mde_range is not None and c.sd is not None
    sd, effect, *ends = (_with_unit(value, c.unit, rough) for value in (c.sd, c.mde, *c.mde_range))
    return [
        f"With the spread seen here (sd of the differences {sd}), {counted(c.n, 'pair')} find a true difference of "
        f"{effect} in 80 % of protocols (two-sided 5 %) and smaller ones less often. That sd is itself uncertain: "
        f"its 95 % interval puts this figure between {ends[0]} and {ends[1]}."
    ]


def _pairing(c: Comparison) -> list[str]:
    if c.pairing is None:
        return [f"No pair correlation: {c.why['pairing']}."]
    width = c.pairing.width_ratio
    effect = f"{100 * abs(1 - width):.0f} % {'narrower' if width < 1 else 'wider'}"
    return [
        f"The arms correlate {c.pairing.correlation:+.2f} over seeds (from n={c.n}, so roughly); the paired interval "
        f"is {effect} than an unpaired one of the same runs, lost degrees of freedom included."
    ]


def _bootstrap(c: Comparison) -> str:
    found = c.bootstrap
    if found.interval is None:
        return f"No bootstrap interval: {found.reason}."
    return (
        f"Bootstrap interval ({found.interval.method}, {found.resamples:,} resamples, seed {found.seed}): "
        f"{rough(found.interval.low)} to {_with_unit(found.interval.high, c.unit, rough)}."
    )


def _verdict(outcome: Outcome) -> str:
    verdict = {
        "difference": "a difference is shown",
        "not shown": "no difference is shown (which is not evidence that there is none)",
        "not judged": "not judged",
    }[outcome.verdict]
    return f"{outcome.endpoint}: {verdict}: {outcome.reason}."


def _reaching(arm: ReachSummary) -> str:
    if arm.horizon is None or arm.mean is None:
        return f"{arm.arm}: no time to the target ({arm.why})."
    axis = next(iter(arm.by_seed.values())).axis
    return (
        f"{arm.arm}: {arm.reached} of {counted(arm.n, 'run')} reached the target by {_at(axis, arm.horizon)}; "
        f"restricted mean {_between(arm.mean)} (a run that did not reach it counts with the whole horizon); median "
        f"{_between(arm.median) if arm.median else 'not reached'}."
    )


def _between(bounds: Bounds) -> str:
    if bounds.high is None:
        return f"after {number(bounds.low)}, perhaps not by the horizon"
    if bounds.low == bounds.high:
        return number(bounds.low)
    return f"between {number(bounds.low)} and {number(bounds.high)}"
