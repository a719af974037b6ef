"""Figures of a run's spectra, drawn from stored results only.

Drawn through matplotlib's object interface, so nothing global changes and no display is needed. A failed fit
is a gap or a grey cell, never a point.
"""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from gpt2exp import atomic
from gpt2exp.errors import ConfigError, StorageError
from gpt2exp.spectral.density import draw_density
from gpt2exp.spectral.records import Array
from gpt2exp.spectral.tables import (
    FITS,
    OVER_TRAINED,
    UNDER_TRAINED,
    Point,
    Result,
    RunFacts,
    correlation_points,
    fit_failure,
    fitted_alpha,
    ordered,
    snapshot_grid,
    spearman,
)

KIND_COLORS = {
    "W_Q": "#0072B2",
    "W_K": "#E69F00",
    "W_V": "#009E73",
    "W_O": "#CC79A7",
    "W_MLP_IN": "#56B4E9",
    "W_MLP_OUT": "#D55E00",
}
"""Colours that colour-blind readers can tell apart (Okabe and Ito, 2008), the same in every figure and run."""
STEP_COLORS = ("#0072B2", "#D55E00", "#009E73")
NO_FIT_COLOR = "0.82"
ALPHA_TICKS = (1, 1.5, 2, 3, 4, 6, 10, 20, 50, 100)
HEAT_LIMITS = (1.5, 12.0)
"""Fixed, so that the colours of two runs can be compared; values beyond get the colours of the ends."""
DPI = 300
STYLE = {"svg.hashsalt": "gpt2exp", "font.size": 10.0, "axes.titlesize": 10.0, "axes.labelsize": 10.0}


def figures(
    run: RunFacts,
    results: Iterable[Result],
    eigenvalues: Mapping[tuple[int, str], Array],
    matrix: str | None = None,
    step: int | None = None,
    tracking: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Figure]:
    """File stem -> figure: alpha by step, alpha's histogram, heat map, and the spectrum of one matrix at one step.

    The run's `tracking` rows add alpha against token error, and show as gaps the snapshots that have no spectra.

    `eigenvalues` maps (step, matrix) to the float64 eigenvalues of W'W, in any order. Left out, `step` is the last
    one and `matrix` the first that has eigenvalues there; if none has, the spectrum is left out. Without results
    there is no figure.

    Raises:
        ConfigError: `step` or `matrix` is none of the results'.
        StorageError: the chosen spectrum has no stored eigenvalues or not all, or the results cannot be shown together.
    """
    results, tracking = ordered(results), list(tracking)
    if not results:
        return {}
    with_gaps = _with_gaps(results, snapshot_grid(results, tracking))
    choice = _choose(results, eigenvalues, matrix, step)
    with style.context(["default", STYLE]):
        drawn = {
            "alpha_by_step": _alpha_by_step(run, with_gaps),
            "alpha_histogram": _alpha_histogram(run, results, step),
            "alpha_heatmap": _alpha_heatmap(run, with_gaps),
        }
        points = correlation_points(results, tracking)
        if points:
            drawn["alpha_token_error"] = _alpha_token_error(run, results, points)
        if choice is not None:
            values = np.asarray(eigenvalues[choice], np.float64)
            drawn[f"esd_{choice[1]}_step_{choice[0]:06d}"] = _spectral_density(run, results, *choice, values)
    return drawn


def save(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Publish each figure as PNG (300 dpi) and SVG; equal figures give equal bytes. The paths, in order.

    Raises:
        OSError: the disk refused; what was there stays whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with style.context(["default", STYLE]):
        for stem, figure in figures.items():
            _settle_layout(figure)
            for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
                data = io.BytesIO()
                figure.savefig(data, format=suffix, dpi=DPI, metadata=metadata)
                paths.append(folder / f"{stem}.{suffix}")
                atomic.write_bytes(paths[-1], data.getvalue())
    return paths


def _choose(
    results: Sequence[Result],
    eigenvalues: Mapping[tuple[int, str], Array],
    matrix: str | None,
    step: int | None,
) -> tuple[int, str] | None:
    steps = [result["step"] for result in results]
    if step is not None and step not in steps:
        raise ConfigError(f"step {step} has no spectra; steps that have: {', '.join(map(str, steps))}")
    step = steps[-1] if step is None else step
    names = [row["matrix"] for row in results[steps.index(step)]["spectra"]]
    if matrix is not None and matrix not in names:
        raise ConfigError(f"matrix {matrix} is not among the spectra of step {step}: {', '.join(names)}")
    if matrix is not None and (step, matrix) not in eigenvalues:
        raise StorageError(f"the eigenvalues of {matrix} at step {step} are not stored; its spectrum cannot be drawn")
    stored = [name for name in names if len(eigenvalues.get((step, name), ())) > 0]
    return (step, matrix or stored[0]) if matrix or stored else None


def _settle_layout(figure: Figure) -> None:
    """Lay out once: constrained layout starts from the last one, so that saving twice would differ."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def _with_gaps(results: Sequence[Result], grid: Sequence[int]) -> list[Result]:
    """Results with one that holds no spectra at each step of the grid that has none."""
    by_step = {result["step"]: result for result in results}
    missing = {"tokens": None, "backend_label": results[0]["backend_label"], "spectra": []}
    return [by_step.get(step, {"step": step, **missing}) for step in grid]


def _alpha_by_step(run: RunFacts, results: Sequence[Result]) -> Figure:
    figure, axes = _panels(run, results, "Power-law exponent α of each kind of matrix")
    for axis, kind in zip(axes, KIND_COLORS, strict=True):
        _alpha_panel(axis, results, kind)
    for axis in axes:
        axis.set_xlabel(_step_label(results))
        axis.set_ylabel("α (no unit, log scale)")
        axis.label_outer()
    handles = [
        Line2D([], [], color="0.25", lw=2, marker="o", ms=3, label="clipped: median over blocks"),
        Line2D([], [], color="0.25", lw=1.5, ls="--", marker="o", ms=2, label="raw: median over blocks"),
        Line2D([], [], color="0.25", lw=0.7, alpha=0.5, label="clipped: one block"),
        Line2D([], [], color="black", lw=1, ls=":", label=f"α = {OVER_TRAINED:g}"),
        Patch(color="0.93", label=f"{OVER_TRAINED:g} ≤ α ≤ {UNDER_TRAINED:g}"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def _alpha_panel(axis: Axes, results: Sequence[Result], kind: str) -> None:
    steps = [result["step"] for result in results]
    rows = [row for result in results for row in result["spectra"] if row["kind"] == kind]
    color = KIND_COLORS[kind]
    axis.axhspan(OVER_TRAINED, UNDER_TRAINED, color="0.93", zorder=0)
    axis.axhline(OVER_TRAINED, color="black", lw=1, ls=":", zorder=1)
    for block in sorted({row["block"] for row in rows}):
        alphas = [_median(_alphas(result, "clip", kind, block)) for result in results]
        axis.plot(steps, alphas, color=color, lw=0.7, alpha=0.5, marker=".", ms=2)
    for fit, line, width, size in (("raw", "--", 1.5, 2), ("clip", "-", 2.0, 3)):
        alphas = [_median(_alphas(result, fit, kind)) for result in results]
        axis.plot(steps, alphas, color=color, lw=width, ls=line, marker="o", ms=size)
    axis.set_title(f"{kind}  {_availability(rows)}".rstrip(), color="black")
    _log_alpha_axis(axis, "y")
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True) if len(steps) > 1 else FixedLocator(steps))
    if all(math.isnan(fitted_alpha(row, fit)) for row, fit in product(rows, FITS)):
        _note(axis, "no successful fit" if rows else "no such matrix")


def _alpha_histogram(run: RunFacts, results: Sequence[Result], step: int | None) -> Figure:
    shown = list(dict.fromkeys([results[0]["step"], *([] if step is None else [step]), results[-1]["step"]]))
    at = {result["step"]: result for result in results if result["step"] in shown}
    figure, axes = _canvas(run, results, "Distribution of α over the matrices of all blocks", 1, 2, (12, 5.4))
    both = [alpha for result, fit in product(at.values(), ("clip", "raw")) for alpha in _alphas(result, fit)]
    edges = np.geomspace(min([OVER_TRAINED, *both]) * 0.95, max([UNDER_TRAINED, *both]) * 1.05, 31)
    for axis, (fit, name) in zip(axes, (("clip", "clipped"), ("raw", "raw")), strict=True):
        axis.axvspan(OVER_TRAINED, UNDER_TRAINED, color="0.93", zorder=0)
        axis.axvline(OVER_TRAINED, color="black", lw=1, ls=":", zorder=1)
        for index, one in enumerate(sorted(shown)):
            alphas = _alphas(at[one], fit)
            label = f"step {one:,} (n = {len(alphas)} of {len(_hidden(at[one]))})"
            counts, _ = np.histogram(alphas, edges)
            axis.stairs(counts, edges, color=STEP_COLORS[index], lw=1.8, ls=("-", "--", "-.")[index], label=label)
            axis.stairs(counts, edges, color=STEP_COLORS[index], alpha=0.12, fill=True)
        axis.set_title(f"{name} fit", color="black")
        axis.set_xlabel("α (no unit, log scale)")
        axis.set_ylabel("Matrices")
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlim(edges[0], edges[-1])
        _log_alpha_axis(axis, "x")
        axis.margins(y=0.1)
        axis.legend(loc="best", frameon=True, framealpha=0.9)
    return figure


def _alpha_heatmap(run: RunFacts, results: Sequence[Result]) -> Figure:
    figure, axes = _panels(run, results, "Clipped α by block and step")
    colors = matplotlib.colormaps["viridis"].with_extremes(bad=NO_FIT_COLOR)
    norm = LogNorm(*HEAT_LIMITS)
    steps = [result["step"] for result in results]
    for axis, kind in zip(axes, KIND_COLORS, strict=True):
        rows = [row for result in results for row in result["spectra"] if row["kind"] == kind]
        blocks = sorted({row["block"] for row in rows})
        alphas = [[_median(_alphas(result, "clip", kind, block)) for result in results] for block in blocks]
        if blocks:
            axis.imshow(np.array(alphas), aspect="auto", origin="lower", cmap=colors, norm=norm, interpolation="none")
        else:
            _note(axis, "no such matrix")
        axis.set_title(f"{kind}  {_availability(rows)}".rstrip())
        axis.set_xlabel("Step (one column a snapshot)")
        axis.set_ylabel("Block")
        axis.label_outer()
        _label_cells(axis.set_xticks, steps, 5)
        _label_cells(axis.set_yticks, blocks, 12)
    bar = figure.colorbar(ScalarMappable(norm, colors), ax=axes, extend="both", pad=0.02, aspect=35)
    bar.set_label("clipped α (no unit, log scale)")
    bar.set_ticks([1.5, 2, 3, 4, 6, 8, 12], labels=["1.5", "2", "3", "4", "6", "8", "12"], minor=False)
    bar.ax.yaxis.set_minor_locator(NullLocator())
    for limit in (OVER_TRAINED, UNDER_TRAINED):
        bar.ax.axhline(limit, color="white", lw=1.5)
    figure.legend(
        handles=[Patch(color=NO_FIT_COLOR, label="no fit, or no spectra")], loc="outside lower right", frameon=False
    )
    return figure


def _alpha_token_error(run: RunFacts, results: Sequence[Result], points: Sequence[Point]) -> Figure:
    alphas, errors = [point.alpha for point in points], [point.token_error for point in points]
    coefficient, reason = spearman(alphas, errors)
    found = f"ρ = {coefficient:.3f}" if coefficient is not None else f"undefined ({reason})"
    title = f"Token error against median clipped α, steps > 0 (n = {len(points)}, Spearman's {found})"
    figure, (axis,) = _canvas(run, results, title, 1, 1, (12, 6.4))
    axis.plot(alphas, errors, color="0.8", lw=1, zorder=1)
    norm = Normalize(points[0].step, max(points[-1].step, points[0].step + 1))
    for source, marker in (("evaluation", "o"), ("probe", "^")):
        here = [point for point in points if point.source == source]
        if here:
            x, y = [point.alpha for point in here], [point.token_error for point in here]
            label = f"token error from the {source} (n = {len(here)})"
            steps = [point.step for point in here]
            axis.scatter(x, y, c=steps, cmap="viridis", norm=norm, marker=marker, s=36, ec="0.3", label=label)
    axis.set_xlabel("Median clipped α over the matrices of all blocks (no unit)")
    axis.set_ylabel("Token error (fraction of target tokens)")
    figure.colorbar(ScalarMappable(norm, "viridis"), ax=axis, pad=0.02).set_label("Step")
    axis.legend(loc="best", framealpha=0.9)
    return figure


def _spectral_density(run: RunFacts, results: Sequence[Result], step: int, matrix: str, eigenvalues: Array) -> Figure:
    result = next(result for result in results if result["step"] == step)
    row = next(row for row in result["spectra"] if row["matrix"] == matrix)
    if len(eigenvalues) != row["num_evals"]:
        found = f"found {len(eigenvalues)}, expected {row['num_evals']}"
        raise StorageError(f"the stored eigenvalues of {matrix} at step {step} are damaged: {found}")
    title = f"Eigenvalue density of {matrix} ({row['rows']} x {row['columns']}) at step {step:,}"
    figure, (axis,) = _canvas(run, results, title, 1, 1, (12, 7))
    draw_density(axis, row, eigenvalues)
    return figure


def _panels(run: RunFacts, results: Sequence[Result], title: str) -> tuple[Figure, list[Axes]]:
    """A panel for each kind of matrix, with the same axes."""
    return _canvas(run, results, title, 2, 3, (12, 7.6))


def _canvas(
    run: RunFacts, results: Sequence[Result], title: str, rows: int, columns: int, inches: tuple[float, float]
) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=inches, layout="constrained")
    facts = f"{run.arm}, seed {run.seed}; spectra by {results[0]['backend_label']}"
    figure.suptitle(f"{title}\n{facts}", fontsize=12)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    return figure, list(axes.flat)


def _note(axis: Axes, text: str) -> None:
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center")


def _alphas(result: Result, fit: str, kind: str | None = None, block: int | None = None) -> list[float]:
    """Alphas of the successful fits among the matrices of the blocks."""
    rows = [row for row in _hidden(result) if kind in (None, row["kind"]) and block in (None, row["block"])]
    return [alpha for row in rows if math.isfinite(alpha := fitted_alpha(row, fit))]


def _hidden(result: Result) -> list[Mapping[str, Any]]:
    return [row for row in result["spectra"] if row["block"] is not None]


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


def _availability(rows: Sequence[Mapping[str, Any]]) -> str:
    failed = sum(fit_failure(row, "clip") is not None for row in rows)
    return f"({failed} of {len(rows)} clipped fits failed)" if failed else ""


def _step_label(results: Sequence[Result]) -> str:
    """The step axis's label, with the tokens of a step where every result agrees on them."""
    sizes = {result["tokens"] / result["step"] for result in results if result["step"] and result["tokens"]}
    if len(sizes) == 1 and (size := sizes.pop()) == int(size) > 0:
        return f"Step (of {int(size):,} tokens)"
    return "Step"


def _log_alpha_axis(axis: Axes, which: str) -> None:
    """Log scale with the ticks that matter for alpha, as plain numbers."""
    axis.set(**{f"{which}scale": "log"})
    ticks = axis.xaxis if which == "x" else axis.yaxis
    ticks.set_major_locator(FixedLocator(ALPHA_TICKS))
    ticks.set_minor_locator(NullLocator())
    ticks.set_major_formatter(FuncFormatter(lambda alpha, _: f"{alpha:g}"))


def _label_cells(set_ticks: Any, names: Sequence[int], most: int) -> None:
    """Tick every cell, or evenly chosen ones where there are more than `most`."""
    if names:
        chosen = np.unique(np.linspace(0, len(names) - 1, min(most, len(names))).round().astype(int))
        set_ticks(chosen, [f"{names[index]:,}" for index in chosen])
