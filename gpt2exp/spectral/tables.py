"""The tables of a run's spectra, derived from stored results: every matrix, a summary a step, correlations.

Rows are plain dicts; `None` is an empty cell. A fit that failed contributes no number anywhere, and is counted
with its reason. Spectra of different estimators are never put into one table.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gpt2exp.errors import StorageError
from gpt2exp.spectral.records import SUCCESS, Spectrum

Row = dict[str, Any]
Result = Mapping[str, Any]

OVER_TRAINED = 2.0
UNDER_TRAINED = 6.0
"""WeightWatcher's limits of alpha: below the first is over-trained, above the second under-trained."""

FITS = ("raw", "clip")
FIT_NUMBERS = ("alpha", "xmin", "xmax", "D", "sigma", "margin")
METRICS: Mapping[str, str | None] = {
    "raw_alpha": "raw",
    "raw_D": "raw",
    "raw_tail_size": "raw",
    "clip_alpha": "clip",
    "clip_D": "clip",
    "clip_tail_size": "clip",
    "clip_num_removed": "clip",
    "erg_gap": "clip",
    "detX_num": None,
    "spectral_norm": None,
    "frobenius_norm": None,
    "stable_rank": None,
    "entropy": None,
    "matrix_rank": None,
}
"""Summarised columns, each with the fit that it comes from; None for what needs no fit."""

IDENTITY_COLUMNS = ("run", "arm", "seed", "step", "tokens", "spectral_estimator", "estimator_version")
SPECTRA_COLUMNS = (*IDENTITY_COLUMNS, "matrix", "kind", "block", "label", *Spectrum.unfit((0, 0), "").row())
SUMMARY_COLUMNS = (
    *IDENTITY_COLUMNS,
    *("metric", "n", "mean", "median", "sd", "min", "max", "n_excluded", "excluded"),
    *("token_error", "target_tokens", "token_error_source"),
)
CORRELATION_COLUMNS = (
    *("run", "arm", "seed", "spectral_estimator", "estimator_version"),
    *("x", "y", "form", "n", "spearman", "reason", "first_step", "last_step", "token_error_sources"),
)


@dataclass(frozen=True)
class RunFacts:
    """Whose spectra they are: name of the run's directory, arm and initialisation seed."""

    run: str
    arm: str
    seed: int


@dataclass(frozen=True)
class Point:
    """One step of the correlation: median clipped alpha, token error and where that was measured."""

    step: int
    alpha: float
    token_error: float
    source: str


def csv_files(run: RunFacts, results: Iterable[Result], tracking: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """File name -> CSV text of all three tables.

    Raises:
        StorageError: as `ordered` and `summary_rows` do.
    """
    results, tracking = list(results), list(tracking)
    return {
        "spectra.csv": csv_text(spectra_rows(run, results), SPECTRA_COLUMNS),
        "spectra_summary.csv": csv_text(summary_rows(run, results, tracking), SUMMARY_COLUMNS),
        "spectra_correlations.csv": csv_text(correlation_rows(run, results, tracking), CORRELATION_COLUMNS),
    }


def csv_text(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    r"""Rows as CSV with a header: `columns` first, then others as they appear; `repr` floats, '\n', UTF-8.

    None, NaN and infinity are empty cells, and so is a column that a row does not have.
    """
    rows = list(rows)
    header = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([header, *([_cell(row.get(name)) for name in header] for row in rows)])
    return file.getvalue()


def ordered(results: Iterable[Result]) -> list[Result]:
    """Results by step.

    Raises:
        StorageError: spectra of more than one estimator or version, or a step or a step's matrix twice.
    """
    by_step = sorted(results, key=lambda result: int(result["step"]))
    _check_one_estimator(by_step)
    repeated = _repeated(result["step"] for result in by_step)
    if repeated is not None:
        raise StorageError(f"spectra of step {repeated} are there twice; expected one result a step")
    for result in by_step:
        repeated = _repeated(row["matrix"] for row in result["spectra"])
        if repeated is not None:
            raise StorageError(f"spectra of step {result['step']}: matrix {repeated} is there twice")
    return by_step


def spectra_rows(run: RunFacts, results: Iterable[Result]) -> list[Row]:
    """Long form: one row a step and matrix, in stored order within a step.

    `label` is WeightWatcher's `over-trained` or `under-trained` by the clipped alpha, empty in between and where
    there is no fit (WeightWatcher calls a failed fit, its alpha -1, over-trained).

    Raises:
        StorageError: as `ordered` does.
    """
    return [{**_identity(run, result), **_honest(row)} for result in ordered(results) for row in result["spectra"]]


def summary_rows(run: RunFacts, results: Iterable[Result], tracking: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row a step and metric, over the matrices of the blocks (embeddings and output head are left out).

    Only finite values count, of successful fits where the metric comes from a fit. `sd` has ddof=1.
    `n_excluded` are the others, `excluded` says why, with counts; a matrix of another step that has no row
    here is one of them. The token error is that of the same step's tracking row.

    Raises:
        StorageError: as `ordered` does; two tracking rows of one step, or one of other weights than the spectra.
    """
    results = ordered(results)
    tracked = _tracking_by_step(tracking)
    names = _hidden_matrices(results)
    return [
        {**_identity(run, result), "metric": metric, **_statistics(result, metric, names), **errors}
        for result in results
        for errors in [_token_error(result, tracked)]
        for metric in METRICS
    ]


def correlation_rows(run: RunFacts, results: Iterable[Result], tracking: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Spearman's rank correlation of the median clipped alpha with the token error, over steps > 0.

    Two rows: of the values, and of their first differences, because two series that both trend with the step
    correlate whatever they have to do with each other. A difference is taken between neighbouring steps of the
    spectra's grid only, never across one that is missing. An undefined correlation is empty, `reason` says why.

    Raises:
        StorageError: as `summary_rows` does.
    """
    results, tracking = ordered(results), list(tracking)
    if not results:
        return []
    points = {point.step: point for point in correlation_points(results, tracking)}
    pairs = [
        (points[a], points[b]) for a, b in pairwise(snapshot_grid(results, tracking)) if a in points and b in points
    ]
    levels = [(point.alpha, point.token_error) for point in points.values()]
    changes = [(b.alpha - a.alpha, b.token_error - a.token_error) for a, b in pairs]
    identity = {name: value for name, value in _identity(run, results[0]).items() if name not in ("step", "tokens")}
    return [
        {**identity, **_correlation("values", levels, points.values())},
        {**identity, **_correlation("first differences", changes, dict.fromkeys(p for pair in pairs for p in pair))},
    ]


def correlation_points(results: Iterable[Result], tracking: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Steps > 0 that have both a median clipped alpha and a token error.

    Raises:
        StorageError: as `summary_rows` does.
    """
    results = ordered(results)
    return list(_points(results, _tracking_by_step(tracking)))


def snapshot_grid(results: Iterable[Result], tracking: Iterable[Mapping[str, Any]]) -> list[int]:
    """Steps that have spectra, or whose snapshot the tracking rows name although its spectra are missing."""
    named = {row["step"] for row in tracking if row["snapshot_sha256"] is not None}
    return sorted(named | {result["step"] for result in results})


def spearman(x: Sequence[float], y: Sequence[float]) -> tuple[float | None, str]:
    """Spearman's rank correlation, ties sharing their mean rank, and why there is none (empty if there is one)."""
    from scipy import stats

    if len(x) < 3:
        return None, "n < 3"
    constant = [name for name, values in (("x", x), ("y", y)) if len(set(values)) == 1]
    if constant:
        return None, f"constant {' and '.join(constant)}"
    return float(stats.spearmanr(x, y).statistic), ""


def fit_failure(row: Mapping[str, Any], fit: str) -> str | None:
    """Why the fit `raw` or `clip` of a stored row has no numbers to use; None where it has."""
    status = row[f"{fit}_status"]
    if status != SUCCESS:
        return str(status)
    if not is_finite(row[f"{fit}_alpha"]):
        return "alpha is not finite"
    return None if row[f"{fit}_alpha"] > 1 else "alpha is not above 1"


def fitted_alpha(row: Mapping[str, Any], fit: str) -> float:
    """Alpha of the fit `raw` or `clip`; NaN where it failed."""
    return math.nan if fit_failure(row, fit) else float(row[f"{fit}_alpha"])


def is_finite(value: Any) -> bool:
    """Whether `value` is a finite number."""
    return value is not None and math.isfinite(value)


def _check_one_estimator(results: Sequence[Result]) -> None:
    steps: dict[tuple[str, str], list[int]] = {}
    for result in results:
        steps.setdefault((result["backend"], result["backend_label"]), []).append(result["step"])
    if len(steps) > 1:
        found = "; ".join(f"{label} ({len(at)} steps from {at[0]})" for (_, label), at in steps.items())
        raise StorageError(
            f"spectra of {len(steps)} estimators in one table: {found}; expected one, because their alphas are "
            "not pooled; the tracking backend or its version changed, so tabulate them separately"
        )


def _repeated(values: Iterable[Any]) -> Any:
    return next((value for value, count in Counter(values).items() if count > 1), None)


def _identity(run: RunFacts, result: Result) -> Row:
    found = (result["step"], result["tokens"], result["backend"], result["backend_label"])
    return dict(zip(IDENTITY_COLUMNS, (run.run, run.arm, run.seed, *found), strict=True))


def _honest(row: Mapping[str, Any]) -> Row:
    """The stored row with its label, and without numbers of failed fits."""
    row = {**row, "label": _label(fitted_alpha(row, "clip"))}
    for fit in FITS:
        reason = fit_failure(row, fit)
        if reason is not None:
            row |= {f"{fit}_status": reason, **{f"{fit}_{name}": None for name in FIT_NUMBERS}}
    return row


def _label(alpha: float) -> str:
    if alpha < OVER_TRAINED:
        return "over-trained"
    return "under-trained" if alpha > UNDER_TRAINED else ""


def _hidden_matrices(results: Iterable[Result]) -> list[str]:
    rows = (row for result in results for row in result["spectra"])
    return list(dict.fromkeys(row["matrix"] for row in rows if row["block"] is not None))


def _statistics(result: Result, metric: str, names: Sequence[str]) -> Row:
    rows = {row["matrix"]: row for row in result["spectra"]}
    reasons = {name: _exclusion(rows.get(name), metric) for name in names}
    values = [float(rows[name][metric]) for name, reason in reasons.items() if reason is None]
    excluded = [reason for reason in reasons.values() if reason is not None]
    return {**_describe(values), "n_excluded": len(excluded), "excluded": _count_text(excluded)}


def _exclusion(row: Mapping[str, Any] | None, metric: str) -> str | None:
    """Why a matrix does not count; None if it does."""
    if row is None:
        return "no row"
    fit = METRICS[metric]
    reason = fit_failure(row, fit) if fit else None
    if reason is not None or is_finite(row[metric]):
        return reason
    return fit_failure(row, "raw") or "no finite value"


def _describe(values: Sequence[float]) -> Row:
    if not values:
        return {"n": 0, "mean": None, "median": None, "sd": None, "min": None, "max": None}
    return {
        "n": len(values),
        "mean": statistics.fmean(values),
        "median": statistics.median(values),
        "sd": statistics.stdev(values) if len(values) > 1 else None,
        "min": min(values),
        "max": max(values),
    }


def _count_text(values: Iterable[str]) -> str:
    counts = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{value}: {count}" for value, count in counts)


def _tracking_by_step(tracking: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    rows = list(tracking)
    repeated = _repeated(row["step"] for row in rows)
    if repeated is not None:
        raise StorageError(f"tracking.jsonl has step {repeated} twice; expected one row a step")
    return {row["step"]: row for row in rows}


def _token_error(result: Result, tracked: Mapping[int, Mapping[str, Any]]) -> Row:
    row = tracked.get(result["step"])
    if row is None:
        return {"token_error": None, "target_tokens": None, "token_error_source": None}
    found, expected = result["snapshot_sha256"], row["snapshot_sha256"]
    if expected is not None and found != expected:
        raise StorageError(
            f"spectra of step {result['step']} are of other weights than its token error: snapshot {found[:12]}, but "
            f"tracking.jsonl says {expected[:12]}; the spectra may be left from before a resume: measure them again"
        )
    names = {"token_error": "token_error", "target_tokens": "target_tokens", "token_error_source": "source"}
    return {column: row[name] for column, name in names.items()}


def _points(results: Sequence[Result], tracked: Mapping[int, Mapping[str, Any]]) -> Iterator[Point]:
    names = _hidden_matrices(results)
    for result in results:
        errors = _token_error(result, tracked)
        alpha = _statistics(result, "clip_alpha", names)["median"]
        if result["step"] > 0 and alpha is not None and is_finite(errors["token_error"]):
            yield Point(result["step"], alpha, errors["token_error"], errors["token_error_source"])


def _correlation(form: str, values: Sequence[tuple[float, float]], points: Iterable[Point]) -> Row:
    points = list(points)
    names = {"x": "median clip_alpha", "y": "token_error"}
    coefficient, reason = spearman([x for x, _ in values], [y for _, y in values])
    return {
        **names,
        "form": form,
        "n": len(values),
        "spearman": coefficient,
        "reason": reason,
        "first_step": min((point.step for point in points), default=None),
        "last_step": max((point.step for point in points), default=None),
        "token_error_sources": _count_text(point.source for point in points),
    }


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)
