"""The figures of a report; `gpt2exp.spectral.plots.save` publishes them, equal findings as equal bytes."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gpt2exp.errors import StorageError
from gpt2exp.report import curves
from gpt2exp.report.curve_figures import LINE, STYLE, WIDTH, Chart, curve_figure, heading, plain
from gpt2exp.report.curves import Quantity, Series
from gpt2exp.report.findings import EndpointFinding, Findings, Kind
from gpt2exp.report.measures import TITLES
from gpt2exp.report.runs import Run
from gpt2exp.report.statistics import Comparison
from gpt2exp.spectral.tables import OVER_TRAINED, UNDER_TRAINED

INTERVAL_LABEL = "mean, 95 % t"
ROW, PANEL = 0.32, 1.35
"""Inches of a seed's row, and of what a panel has around its rows."""


def figures(findings: Findings) -> dict[str, Figure]:
    """File stem -> figure: loss by tokens and by time, paired differences, token error, median alpha.

    A figure that would hold no point is left out.

    Raises:
        StorageError: a run's rows are out of order, or its `spectra_summary.csv` is damaged.
    """
    loss = Chart(
        "Validation loss by training tokens",
        "Validation loss (nats a token)",
        curves.val_loss,
        "tokens",
        findings.foreign,
        (findings.plan or {}).get("declared", {}).get("target_val_loss"),
        with_training=findings.kind is Kind.run,
    )
    timed = replace(loss, title="Validation loss by wall time", axis="seconds")
    errors = Chart("Token error by training tokens", "Token error (share)", curves.token_error, "tokens")
    with style.context(["default", STYLE]):
        drawn = {
            "loss_by_tokens": curve_figure(findings, loss),
            "loss_by_time": curve_figure(findings, timed),
            "paired_differences": paired_differences(findings),
            "token_error_by_tokens": curve_figure(findings, errors),
            **alpha_figures(findings),
        }
    return {stem: figure for stem, figure in drawn.items() if figure is not None}


def paired_differences(findings: Findings) -> Figure | None:
    """A panel for each paired comparison, the primary endpoint's first; None where nothing was paired."""
    endpoints = sorted(findings.endpoints, key=lambda endpoint: not endpoint.primary)
    shown = [(endpoint, found) for endpoint in endpoints for found in endpoint.comparisons if found.differences]
    if not shown:
        return None
    inches = [PANEL + ROW * len(rows_of(found)) for _, found in shown]
    figure = Figure(figsize=(WIDTH, 0.6 + sum(inches)), layout="constrained")
    figure.suptitle(heading(findings, "Paired differences, seed by seed"), fontsize=12)
    panels = figure.subplots(len(shown), 1, squeeze=False, height_ratios=inches).flat
    for axis, (endpoint, found) in zip(panels, shown, strict=True):
        draw_differences(axis, endpoint, found)
    return figure


def rows_of(found: Comparison) -> list[str]:
    """Labels from the top: every seed that was asked for, then the mean where there is one."""
    seeds = [f"seed {seed}" for seed in sorted({*found.a.by_seed, *found.b.by_seed})]
    label = INTERVAL_LABEL if found.interval else "mean"
    return seeds + ([label] if found.mean is not None else [])


def draw_differences(axis: Axes, endpoint: EndpointFinding, found: Comparison) -> None:
    """A dot a seed, the mean with its interval, and the line of no difference."""
    labels = rows_of(found)
    axis.axvline(0, color="black", lw=1)
    for seed, difference in found.differences.items():
        axis.plot(difference, labels.index(f"seed {seed}"), "o", color="#0072B2", ms=7)
    if found.mean is not None:
        bottom = len(labels) - 1
        if found.interval:
            axis.plot([found.interval.low, found.interval.high], [bottom, bottom], "|-", color="#D55E00", lw=2, ms=12)
        axis.plot(found.mean, bottom, "D", color="#D55E00", ms=7)
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.set_title(f"{TITLES[endpoint.name]}, n = {found.n}{primary_note(endpoint)}\n{fill(found.direction, LINE)}")
    axis.set_xlabel("\n".join(below(endpoint, found)))
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter(FuncFormatter(plain))
    axis.margins(x=0.08)
    axis.grid(axis="x", color="0.88", lw=0.6)
    axis.set_axisbelow(True)


def primary_note(endpoint: EndpointFinding) -> str:
    """Whether it is the endpoint that the plan named first."""
    return " (primary endpoint)" if endpoint.primary else ""


def below(endpoint: EndpointFinding, found: Comparison) -> list[str]:
    """Lines of the axis's label: the unit, which side is whose, and why there is no mean or no interval."""
    lines = [f"difference ({endpoint.unit})" if endpoint.unit else "difference", f"left of 0: {found.a.arm} is lower"]
    if found.incomplete:
        lines.append(f"incomplete, so no mean: {'; '.join(found.incomplete)}")
    elif found.interval is None:
        lines.append(f"no interval: {found.no_p}")
    return [piece for line in lines for piece in fill(line, LINE).splitlines()]


def alpha_figures(findings: Findings) -> dict[str, Figure | None]:
    """Median clipped alpha by tokens: a figure for each spectral estimator, because they are never pooled."""
    tables = {run.path: alpha_rows(run) for run in findings.runs}
    estimators = list(dict.fromkeys(row["estimator_version"] for rows in tables.values() for row in rows))
    drawn = {}
    for i, estimator in enumerate(estimators):
        chart = Chart(
            f"Median clipped α of the blocks' matrices ({estimator})",
            "Median clipped α (no unit)",
            alpha_of(tables, estimator),
            "tokens",
            shade=(OVER_TRAINED, UNDER_TRAINED, f"{OVER_TRAINED:g} ≤ α ≤ {UNDER_TRAINED:g}"),
        )
        drawn[f"alpha_by_tokens{'' if i == 0 else f'_{i + 1}'}"] = curve_figure(findings, chart)
    return drawn


def alpha_rows(run: Run) -> list[dict[str, str]]:
    """The rows of clipped alpha in a run's `spectra_summary.csv`; none where it has no such file.

    Raises:
        StorageError: the file is damaged.
    """
    file = run.path / "spectra_summary.csv"
    if not file.is_file():
        return []
    try:
        rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
        kept = [row for row in rows if row["metric"] == "clip_alpha"]
        for row in kept:
            _ = int(row["step"]), int(row["tokens"]), float(row["median"].strip() or "nan"), row["estimator_version"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{file}: damaged ({error}); gpt2exp spectra {run.path} writes it again") from None
    return kept


def alpha_of(tables: Mapping[Path, Sequence[dict[str, str]]], estimator: str) -> Quantity:
    """The median of one estimator as a quantity of a run."""

    def points(run: Run) -> Iterator[tuple[float, float, float, float]]:
        for row in tables[run.path]:
            if row["estimator_version"] == estimator:
                seconds = run.seconds.get(int(row["step"]), math.nan)
                yield int(row["step"]), int(row["tokens"]), seconds, float(row["median"] or "nan")

    return lambda run: Series.of(points(run))
