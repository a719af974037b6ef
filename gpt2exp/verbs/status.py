"""status DIR: where the runs at or below a folder stand.

Usage: gpt2exp status DIR
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console
from rich.table import Table

from gpt2exp import rundir
from gpt2exp.errors import ConfigError, StorageError
from gpt2exp.verbs_help import positional

COLUMNS = ("run", "arm", "seed", "status", "step", "loss", "val loss", "attempts", "updated")
PIPE_WIDTH = 10_000
"""Columns of output that no person's terminal wraps."""


def main(arguments: list[str]) -> int:
    """Print one line a run."""
    (folder,) = positional(arguments, __doc__, at_least=1, at_most=1)
    root = Path(folder)
    runs = rundir.find_runs(root) if root.is_dir() else []
    if not runs:
        raise ConfigError(f"{folder}: no run directory at or below it")
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for run in runs:
        table.add_row(*row(run, root))
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    with console.capture() as printed:
        console.print(table)
    print(printed.get(), end="")
    return 0


def row(run: Path, root: Path) -> list[str]:
    """The cells of one run; an unreadable one says so instead of hiding the others."""
    name = str(run.relative_to(root)) if run != root else run.resolve().name
    try:
        return [name, *cells(run, rundir.read_record(run))]
    except (StorageError, ValueError, KeyError, TypeError):
        return [name, "", "", "unreadable: damaged, or of another version", *[""] * (len(COLUMNS) - 4)]


def cells(run: Path, record: dict[str, Any]) -> list[str]:
    """All columns but the name."""
    metrics, evaluations = rundir.read_rows(run, "metrics"), rundir.read_rows(run, "evaluations")
    step = metrics[-1]["step"] if metrics else 0
    return [
        record["arm"],
        str(record["seed"]),
        status_text(run, record),
        f"{step}/{record['training']['schedule']['num_steps']}",
        number(metrics[-1]["loss"] if metrics else None),
        number(evaluations[-1]["val_loss"] if evaluations else None),
        str(len(record["attempts"])),
        record.get("updated", ""),
    ]


def status_text(run: Path, record: dict[str, Any]) -> str:
    """The recorded status; a run that says it is under way but that no process holds was killed."""
    status = str(record["status"])
    if status in (rundir.Status.running.name, rundir.Status.claimed.name) and not held(run):
        return f"killed (gpt2exp resume {run})"
    if status == rundir.Status.measuring.name and not held(run):
        return f"measuring (gpt2exp spectra {run})"
    inexact = " (inexact resume)" if record.get("inexact") else ""
    reason = f" ({record['reason']})" if record.get("reason") else ""
    return status + inexact + reason


def held(run: Path) -> bool:
    """Whether a process holds the run's lock, as far as this one may know; makes no lock file."""
    lock_file = run / ".lock"
    if not lock_file.exists():
        return False
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return True
    lock.release()
    return False


def number(value: float | None) -> str:
    """Four decimals, or a dash for what is missing."""
    return "-" if value is None else f"{value:.4f}"
