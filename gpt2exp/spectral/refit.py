"""Fit the stored eigenvalues again with the fast backend: other numbers of the same weights, under their own label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpt2exp import atomic
from gpt2exp.config import SpectralBackend
from gpt2exp.rundir import read_rows, spectra_folder
from gpt2exp.spectral import fast, tables
from gpt2exp.spectral.backends import label
from gpt2exp.spectral.completion import facts_of, results_of
from gpt2exp.spectral.records import Array
from gpt2exp.spectral.snapshots import Queue

FOLDER = "spectra_refit"
KEPT = ("matrix", "kind", "block")


def refit(run: Path) -> Path:
    """Refit every step of a run; the folder of its tables, which the run's own never mix with."""
    queue, folder = Queue(spectra_folder(run)), run / FOLDER
    results = [_refitted(result, queue.eigenvalues(result["step"])) for result in results_of(run)]
    folder.mkdir(exist_ok=True)
    for name, text in tables.csv_files(facts_of(run), results, read_rows(run, "tracking")).items():
        atomic.write_text(folder / name, text)
    return folder


def _refitted(result: dict[str, Any], eigenvalues: dict[str, Array]) -> dict[str, Any]:
    backend = SpectralBackend.fast.name
    rows = [_row(row, eigenvalues[row["matrix"]]) for row in result["spectra"]]
    return {**result, "backend": backend, "backend_label": f"{label(backend)}, stored eigenvalues", "spectra": rows}


def _row(row: dict[str, Any], eigenvalues: Array) -> dict[str, Any]:
    kept = {name: row[name] for name in KEPT}
    if not len(eigenvalues):
        return {name: value for name, value in row.items() if not name.startswith("rand_")}
    return {**kept, **fast.spectrum_of(eigenvalues, (row["rows"], row["columns"])).row()}
