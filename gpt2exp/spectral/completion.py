"""Bring a run's spectra to their end: wait for the queue, see that the grid is whole, write the tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpt2exp import atomic
from gpt2exp.errors import StoppedError
from gpt2exp.rundir import read_record, read_rows, spectra_folder
from gpt2exp.spectral import tables
from gpt2exp.spectral.snapshots import Queue
from gpt2exp.spectral.supervisor import Supervisor


def finish(run: Path, supervisor: Supervisor, stopped: Callable[[], str | None]) -> None:
    """Wait until every snapshot of a run is fitted, and write its tables.

    Args:
        run: its directory.
        supervisor: of its queue.
        stopped: says why to stop waiting, or None.

    Raises:
        StoppedError: stopped, or the grid cannot be finished; what was fitted stands.
    """
    waiting = len(supervisor.queue.pending())
    if waiting:
        supervisor.say(f"spectra: {waiting} snapshots to fit")
    finished = supervisor.wait(0, lambda: stopped() is not None)
    write_tables(run)
    if not finished:
        raise StoppedError(str(supervisor.trouble or stopped()))
    missing = missing_steps(run)
    if missing:
        raise StoppedError(f"no spectra of steps {', '.join(map(str, missing))}: their snapshots are gone")


def results_of(run: Path) -> list[dict[str, Any]]:
    """Results that belong to the run's rows, by step: those of weights of another attempt do not."""
    queue, wanted = Queue(spectra_folder(run)), snapshots_of(run)
    found = (queue.result(step) for step in queue.done() if step in wanted)
    return [result for result in found if result["snapshot_sha256"] == wanted[result["step"]]]


def missing_steps(run: Path) -> list[int]:
    """Steps whose weights were kept and that have no result."""
    have = {result["step"] for result in results_of(run)}
    return [step for step in snapshots_of(run) if step not in have]


def snapshots_of(run: Path) -> dict[int, str]:
    """SHA256 of the snapshot of each step that has one."""
    rows = read_rows(run, "tracking")
    return {row["step"]: row["snapshot_sha256"] for row in rows if row["snapshot_sha256"] is not None}


def facts_of(run: Path) -> tables.RunFacts:
    """Whose spectra they are."""
    record = read_record(run)
    return tables.RunFacts(run.resolve().name, record["arm"], record["seed"])


def write_tables(run: Path) -> list[Path]:
    """Write `spectra.csv`, `spectra_summary.csv` and `spectra_correlations.csv`; none without a result."""
    results = results_of(run)
    if not results:
        return []
    texts = tables.csv_files(facts_of(run), results, read_rows(run, "tracking"))
    for name, text in texts.items():
        atomic.write_text(run / name, text)
    return [run / name for name in texts]


def headline(run: Path) -> str:
    """One line: how many steps have spectra, by whom, and where the median clipped alpha went."""
    results = results_of(run)
    if not results:
        return "spectra: no step has any"
    rows = tables.summary_rows(facts_of(run), results, [])
    alphas = [row for row in rows if row["metric"] == "clip_alpha"]
    first, last = (f"{_number(row['median'])} at step {row['step']}" for row in (alphas[0], alphas[-1]))
    excluded = sum(row["n_excluded"] for row in alphas)
    return (
        f"spectra of {len(results[0]['spectra'])} matrices at {len(results)} of {len(snapshots_of(run))} steps "
        f"({results[0]['backend_label']}): median clipped alpha {first}, {last}; {excluded} fits failed"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
