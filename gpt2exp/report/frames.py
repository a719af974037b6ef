"""Runs as tidy pandas tables: one row an observation, the run's name, arm and seed on every row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2exp import rundir
from gpt2exp.identity import flatten
from gpt2exp.report.assess import assess
from gpt2exp.report.findings import Findings
from gpt2exp.report.runs import Run
from gpt2exp.spectral.completion import facts_of, results_of
from gpt2exp.spectral.tables import spectra_rows

if TYPE_CHECKING:
    import pandas as pd

TIERS = ("training", "measurement", "execution")
RECORDED = (
    "status",
    "corpus",
    "digests",
    "ids",
    "initial_weights_sha256",
    "host",
    "python",
    "versions",
    "final_val_loss",
)


@dataclass(frozen=True)
class Results:
    """Everything that runs recorded.

    Attributes:
        runs: a row a run: status, final values, identity tier by tier as dotted columns (`training.optimizer.lr`),
            digests, versions, host.
        updates: a row an update of `metrics.jsonl`; `qk_max` is the largest over layers, `qk_max_by_layer` all.
        evaluations: a row an evaluation, with the seconds of training it took to get there.
        tracking: a row a tracked step: token error and its source.
        spectra: a row a step and matrix, token error beside it.
        pairs: a row a seed, endpoint and comparison of a protocol: both values and the difference; empty unless
            everything is complete and comparable.
    """

    runs: pd.DataFrame
    updates: pd.DataFrame
    evaluations: pd.DataFrame
    tracking: pd.DataFrame
    spectra: pd.DataFrame
    pairs: pd.DataFrame


def results(folder: str | Path) -> Results:
    """Read every run at or below `folder`.

    Raises:
        StorageError: no run there, or a damaged one.
    """
    findings = assess([Path(folder)])
    runs = findings.runs
    return Results(
        runs=_frame(run_row(run) for run in runs),
        updates=_frame(_rows(runs, lambda run: map(update_row, run.metrics))),
        evaluations=_frame(_rows(runs, evaluation_rows)),
        tracking=_frame(_rows(runs, lambda run: run.tracking)),
        spectra=_frame(row for run in runs for row in spectrum_rows(run)),
        pairs=_frame(pair_rows(findings)),
    )


def run_row(run: Run) -> dict[str, Any]:
    """One run, flat."""
    tiers = {key: value for tier in TIERS for key, value in flatten(run.record[tier], tier).items()}
    recorded = {key: value for name in RECORDED for key, value in flatten(run.record.get(name), name).items()}
    own = {
        "path": str(run.path),
        "step": run.step,
        "seconds": run.elapsed,
        "final_token_error": run.final("token_error"),
        "attempts": len(run.record["attempts"]),
        "inexact": bool(run.record.get("inexact")),
    }
    return {**named(run), **own, **recorded, **{key: _cell(value) for key, value in tiers.items()}}


def named(run: Run) -> dict[str, Any]:
    """What tells a run's rows from another's."""
    return {"run": run.name, "arm": run.arm, "seed": run.seed}


def update_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `metrics.jsonl` with its maxima over layers in one number."""
    if "qk_max" not in row:
        return dict(row)
    known = [value for value in row["qk_max"] if value is not None]
    return {**row, "qk_max": max(known, default=None), "qk_max_by_layer": row["qk_max"]}


def evaluation_rows(run: Run) -> Iterator[dict[str, Any]]:
    """Evaluations with the seconds that the kept trajectory had taken by then."""
    for row in run.evaluations:
        yield {**row, "seconds": run.seconds.get(row["step"])}


def spectrum_rows(run: Run) -> Iterator[dict[str, Any]]:
    """Spectra as in `spectra.csv`, with the token error of their step."""
    if not rundir.spectra_folder(run.path).is_dir():
        return
    errors = {row["step"]: row["token_error"] for row in run.tracking}
    for row in spectra_rows(facts_of(run.path), results_of(run.path)):
        yield {**row, "token_error": errors.get(row["step"])}


def pair_rows(findings: Findings) -> Iterator[dict[str, Any]]:
    """Paired differences of a comparable protocol."""
    for endpoint in findings.endpoints:
        for comparison in endpoint.comparisons:
            for seed, difference in comparison.differences.items():
                yield {
                    "seed": seed,
                    "endpoint": endpoint.name,
                    "unit": endpoint.unit,
                    "arm": comparison.a.arm,
                    "other_arm": comparison.b.arm,
                    "value": comparison.a.by_seed[seed],
                    "other_value": comparison.b.by_seed[seed],
                    "difference": difference,
                }


def _rows(runs: Iterable[Run], of: Callable[[Run], Iterable[Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    return ({**named(run), **row} for run in runs for row in of(run))


def _frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows))


def _cell(value: Any) -> Any:
    """Lists as text, so that columns can be compared and grouped by."""
    return str(value) if isinstance(value, list | dict) else value
