"""One figure of curves: thin lines are seeds, bands are over seeds only, what is missing is a gap.

Drawn through matplotlib's object interface, so nothing global changes and no display is needed; small enough that
the text can be read on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gpt2exp.report import curves
from gpt2exp.report.curves import Band, Quantity, Series
from gpt2exp.report.findings import Findings, Foreign, Kind
from gpt2exp.report.runs import Run

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that colour-blind readers can tell apart (Okabe and Ito, 2008), by the order of the arms."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), "-.", (0, (1, 1.2)))
FOREIGN_COLORS = ("0.35", "0.6")
FOREIGN_DASH = (0, (3, 2))
STYLE = {"svg.hashsalt": "gpt2exp", "font.size": 11.0, "axes.titlesize": 11.0, "axes.labelsize": 11.0}
WIDTH = 5.2
"""Inches: a phone shows 70 pixels an inch, so that 11 points are 11 pixels."""
ENTRY = 0.24
"""Inches of a legend's line, by which a figure grows."""
LINE = 50
"""Characters of a line of a title or a legend."""
LATE = 0.5
"""The second panel begins at this share of the horizon."""
FEW = 40
"""Points are marked in a figure whose curves have no more than this."""
TIME_UNITS = ((7200.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


@dataclass(frozen=True)
class Chart:
    """What a figure of curves shows; `shade` is a range of values, with what it means."""

    title: str
    label: str
    quantity: Quantity
    axis: str
    foreign: tuple[Foreign, ...] = ()
    target: float | None = None
    shade: tuple[float, float, str] | None = None
    with_training: bool = False


@dataclass(frozen=True)
class Line:
    """How the runs of one arm, or one of several unrelated runs, are drawn; `band` is over its complete seeds."""

    label: str
    color: str
    dash: Any
    runs: tuple[Run, ...]
    band: Band | None = None


def heading(findings: Findings, title: str) -> str:
    """A title in lines that fit, with `incomplete` where runs are missing or unfinished."""
    runs = findings.requested if findings.kind is Kind.protocol else findings.runs
    done = sum(run.complete for run in runs)
    title = fill(title, LINE)
    return title if done == len(runs) else f"{title}\n(incomplete: {done} of {len(runs)} runs complete)"


def curve_figure(findings: Findings, chart: Chart) -> Figure | None:
    """One quantity along one axis, and its second half again at its own scale; None without a point."""
    lines = lines_of(findings, chart)
    known = [x for line in lines for run in line.runs for x in known_at(chart.quantity(run), chart.axis)]
    known = known or [x for curve in chart.foreign for x in known_at(curves.foreign_series(curve), chart.axis)]
    if not known:
        return None
    horizon = max(known)
    late = len({x for x in known if x >= LATE * horizon}) >= 3
    handles = legend(lines, chart)
    entries = sum(1 + str(handle.get_label()).count("\n") for handle in handles)
    figure = Figure(figsize=(WIDTH, (5.4 if late else 3.4) + ENTRY * entries), layout="constrained")
    figure.suptitle(heading(findings, chart.title), fontsize=12)
    panels = list(figure.subplots(1 + late, 1, squeeze=False).flat)
    divisor, name = unit_of(chart.axis, horizon)
    for axis in panels:
        draw_curves(axis, lines, chart, horizon, divisor)
    if late:
        show_late(panels[1], LATE * horizon / divisor, horizon / divisor)
    for axis in panels:
        draw_marks(axis, chart)
    panels[0].set_title(chart.label, fontsize=10, loc="left")
    panels[-1].set_xlabel(name)
    figure.legend(handles=handles, loc="outside lower left", frameon=False, fontsize=10, handlelength=2.6)
    return figure


def lines_of(findings: Findings, chart: Chart) -> list[Line]:
    """An entry an arm for a protocol; for other runs an entry a run, coloured by arm."""
    arms = findings.arms
    colors = {arm: COLORS[i % len(COLORS)] for i, arm in enumerate(arms)}
    if findings.kind is Kind.protocol:
        groups = [(i, arm, tuple(run for run in findings.runs if run.arm == arm)) for i, arm in enumerate(arms)]
        return [
            Line(f"{arm} ({seeds(runs)})", colors[arm], dash(i), runs, band_of(findings, runs, chart))
            for i, arm, runs in groups
            if runs
        ]
    return [
        Line(f"{run.arm}, seed {run.seed} ({run.name})", colors[run.arm], dash(i), (run,))
        for i, run in enumerate(findings.runs)
    ]


def band_of(findings: Findings, runs: Sequence[Run], chart: Chart) -> Band | None:
    """Over the complete seeds of one arm; none for runs that may not be pooled."""
    complete = [run for run in runs if run.complete]
    pooled = findings.comparable or not findings.differences
    distinct = len({run.seed for run in complete}) == len(complete)
    found = curves.band(complete, chart.quantity, chart.axis) if pooled and distinct else None
    return found if found and found.at else None


def dash(index: int) -> Any:
    """The line style of an arm or run."""
    return DASHES[index % len(DASHES)]


def seeds(runs: Sequence[Run]) -> str:
    """`1 seed`, `3 seeds`."""
    count = len({run.seed for run in runs})
    return f"{count} seed{'' if count == 1 else 's'}"


def draw_curves(axis: Axes, lines: Sequence[Line], chart: Chart, horizon: float, divisor: float) -> None:
    """Every curve of a panel, the foreign ones no further than the runs go."""
    few = max((len(chart.quantity(run)) for line in lines for run in line.runs), default=FEW + 1) <= FEW

    def plot(series: Series, **how: Any) -> None:
        points = [(x / divisor, y) for x, y in series.along(chart.axis) if x <= horizon]
        values = [y for _, y in points]
        marked = list(range(len(values))) if few and len(values) <= FEW else isolated(values)
        axis.plot([x for x, _ in points], values, marker="o", markevery=marked, ms=3, **how)

    for i, curve in enumerate(chart.foreign):
        plot(curves.foreign_series(curve), color=FOREIGN_COLORS[i % 2], ls=FOREIGN_DASH, lw=1.5)
    for line in lines:
        for run in line.runs:
            if chart.with_training:
                plot(curves.train_loss(run), color=line.color, lw=0.8, alpha=0.45)
            plot(chart.quantity(run), color=line.color, ls=line.dash, lw=0.7 if line.band else 1.5)
        if line.band:
            at = [x / divisor for x in line.band.at]
            axis.fill_between(at, line.band.low, line.band.high, color=line.color, alpha=0.18, lw=0)
            axis.plot(at, line.band.mean, color=line.color, ls=line.dash, lw=2.0)


def isolated(values: Sequence[float]) -> list[int]:
    """Where a value has no neighbour to be joined to: a line alone would not show it."""
    known = [False, *map(math.isfinite, values), False]
    return [i for i in range(len(values)) if known[i + 1] and not known[i] and not known[i + 2]]


def draw_marks(axis: Axes, chart: Chart) -> None:
    """Target, shaded range, grid and ticks."""
    if chart.target is not None:
        axis.axhline(chart.target, color="black", lw=1, ls=":")
    if chart.shade is not None:
        axis.axhspan(*chart.shade[:2], color="0.94", zorder=0)
    axis.grid(color="0.88", lw=0.6)
    axis.set_axisbelow(True)
    axis.xaxis.set_major_locator(MaxNLocator(6))
    axis.xaxis.set_major_formatter(FuncFormatter(counted if chart.axis == "tokens" else plain))


def show_late(axis: Axes, start: float, end: float) -> None:
    """Limit a panel to what lies between `start` and `end`, at its own scale."""
    heights = heights_between(axis, start, end)
    low, high = min(heights), max(heights)
    margin = 0.08 * (high - low) or 0.01 * abs(high) or 1.0
    axis.set_xlim(start - 0.02 * (end - start), end + 0.02 * (end - start))
    axis.set_ylim(low - margin, high + margin)
    axis.set_title("the second half, at its own scale", fontsize=10, loc="left")


def heights_between(axis: Axes, start: float, end: float) -> list[float]:
    """Finite values of all lines between two positions, those at which a line enters included."""
    heights: list[float] = []
    for line in axis.lines:
        points_N2 = np.asarray(line.get_xydata(), np.float64)
        x_N, y_N = points_N2.T
        heights += y_N[(x_N >= start) & (x_N <= end)].tolist()
        if len(x_N) and x_N[0] <= start <= x_N[-1]:
            heights.append(float(np.interp(start, x_N, y_N)))
    return [height for height in heights if math.isfinite(height)]


def legend(lines: Sequence[Line], chart: Chart) -> list[Line2D | Patch]:
    """What the lines, the bands and the marks are."""

    def entry(label: str, **how: Any) -> Line2D:
        return Line2D([], [], label=fill(label, LINE), **how)

    handles: list[Line2D | Patch] = [entry(line.label, color=line.color, ls=line.dash, lw=2) for line in lines]
    if chart.with_training and lines:
        handles.append(entry("training loss, smoothed", color=lines[0].color, lw=0.8, alpha=0.45))
    if any(line.band for line in lines):
        n = " or ".join(sorted({str(line.band.n) for line in lines if line.band}))
        handles.append(entry("thin: one seed; thick: mean over seeds", color="0.4", lw=0.8))
        handles.append(Patch(color="0.4", alpha=0.25, lw=0, label=f"lowest to highest of {n} seeds (no interval)"))
    for i, curve in enumerate(chart.foreign):
        if known_at(curves.foreign_series(curve), chart.axis):
            handles.append(entry(curve.label, color=FOREIGN_COLORS[i % 2], ls=FOREIGN_DASH, lw=1.5))
    if chart.target is not None:
        handles.append(entry(f"target {chart.target:g}", color="black", lw=1, ls=":"))
    if chart.shade is not None:
        handles.append(Patch(color="0.94", label=chart.shade[2]))
    return handles


def known_at(series: Series, axis: str) -> list[float]:
    """Positions that have a value."""
    return [x for x, y in series.along(axis) if math.isfinite(y)]


def unit_of(axis: str, horizon: float) -> tuple[float, str]:
    """Divisor of an axis's positions, and its label."""
    if axis == "tokens":
        return 1.0, "Training tokens"
    divisor, name = next((divisor, name) for least, divisor, name in TIME_UNITS if horizon >= least)
    return divisor, f"Wall time ({name})"


def counted(value: float, _: int) -> str:
    """`2.5B`, `500M`, `40k`."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def plain(value: float, _: int) -> str:
    """As short as it goes."""
    return f"{value:g}"
