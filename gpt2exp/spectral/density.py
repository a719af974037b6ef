"""The empirical spectral density of one matrix on log-log axes, with its fits and their cuts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from gpt2exp.spectral.records import Array
from gpt2exp.spectral.tables import fit_failure

RAW_COLOR, CLIP_COLOR, REMOVED_COLOR = "#0072B2", "#D55E00", "#000000"
NEGLIGIBLE = 1e-10
"""Eigenvalues below this fraction of the largest are rounding noise of a rank-deficient matrix: not drawn."""


def draw_density(axis: Axes, row: Mapping[str, Any], eigenvalues: Array) -> None:
    """Draw eigenvalues (n,) as a density, both fits of their stored `row`, the cuts, and what clipping removed."""
    values = np.sort(eigenvalues)
    drawn = values[values > NEGLIGIBLE * values[-1]] if len(values) else values
    if len(drawn):
        axis.set(xscale="log", yscale="log")
        _points(axis, drawn, len(values))
    else:
        axis.set(xticks=[], yticks=[])
        axis.plot([], [], ls="", label=f"{len(values)} eigenvalues, none above 0")
    _fit_line(axis, row, "raw", values)
    _fit_line(axis, row, "clip", values)
    _removed_marks(axis, row, values)
    axis.set_xlabel("Eigenvalue λ of WᵀW (squared weight units)")
    axis.set_ylabel("Density ρ(λ) (per unit of λ)")
    axis.grid(which="major", color="0.92", lw=0.8)
    axis.set_axisbelow(True)
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _points(axis: Axes, values: Array, total: int) -> None:
    """Histogram in bins of equal ratio, normalised to all `total` eigenvalues."""
    low, high = values[0] * 0.999, values[-1] * 1.001
    bins_a_decade = min(24, max(8, round(math.sqrt(len(values)))))
    edges = np.geomspace(low, high, math.ceil(math.log10(high / low) * bins_a_decade) + 1)
    counts, _ = np.histogram(values, edges)
    density = counts / total / np.diff(edges)
    centers = np.sqrt(edges[1:] * edges[:-1])
    hidden = f", {total - len(values)} near zero not drawn" if total > len(values) else ""
    label = f"{total} eigenvalues{hidden}"
    axis.plot(centers[counts > 0], density[counts > 0], "o", ms=4.5, mfc="0.75", mec="0.4", label=label)


def _fit_line(axis: Axes, row: Mapping[str, Any], fit: str, values: Array) -> None:
    """The fitted density on its range, scaled to the share of the eigenvalues in it, and vertical cuts.

    The raw fit is dashed and lies above, so that both show where they are the same.
    """
    name, color, line, order = _FITS[fit]
    reason = fit_failure(row, fit)
    if reason is not None:
        axis.plot([], [], ls="", label=f"{name}: no fit ({reason})")
        return
    alpha, xmin, tail = (row[f"{fit}_{column}"] for column in ("alpha", "xmin", "tail_size"))
    xmax = values[-1] if row[f"{fit}_xmax"] is None else row[f"{fit}_xmax"]
    x = np.geomspace(xmin, xmax, 50)
    y = tail / len(values) * (alpha - 1) / xmin * (x / xmin) ** -alpha
    quality = f"± {_number(row[f'{fit}_sigma'])}\nD = {_number(row[f'{fit}_D'])}, tail of {tail}"
    axis.plot(x, y, color=color, ls=line, lw=2.2, label=f"{name}: α = {_number(alpha)} {quality}", zorder=order)
    axis.axvline(xmin, color=color, lw=1.3, ls=line, label=f"xmin {name} = {xmin:.4g}", zorder=order)
    if fit == "clip":
        axis.axvline(xmax, color=color, lw=1.3, ls=":", label=f"xmax {name} = {xmax:.4g}")


_FITS = {"raw": ("raw", RAW_COLOR, "--", 3.0), "clip": ("clipped", CLIP_COLOR, "-", 2.5)}
"""Name, colour, line style and drawing order of each fit."""


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _removed_marks(axis: Axes, row: Mapping[str, Any], values: Array) -> None:
    count = 0 if fit_failure(row, "clip") else int(row["clip_num_removed"])
    if count == 0:
        return
    label = f"{count} largest removed by clipping"
    heights = np.full(count, 0.03)
    removed = values[-count:]
    axis.plot(removed, heights, "x", color=REMOVED_COLOR, ms=8, transform=axis.get_xaxis_transform(), label=label)
