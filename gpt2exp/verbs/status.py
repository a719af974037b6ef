"""status DIR: where the runs at or below a folder stand.

Usage: gpt2exp status DIR
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console
from rich.table import Table

from gpt2exp import rundir
from gpt2exp.errors import ConfigError, StorageError
from gpt2exp.verbs_help import positional

COLUMNS = ("run", "arm", "seed", "status", "step", "loss", "val loss", "attempts", "updated")


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
    console = Console(highlight=False)
    Console(highlight=False, width=console.width if console.is_terminal else 200).print(table)
    return 0


def row(run: Path, root: Path) -> list[str]:
    """The cells of one run; an unreadable one says so instead of hiding the others."""
    name = str(run.relative_to(root)) if run != root else run.name
    try:
        record = rundir.read_record(run)
    except StorageError:
        return [name, "", "", "unreadable run.json", "", "", "", "", ""]
    metrics, evaluations = rundir.read_rows(run, "metrics"), rundir.read_rows(run, "evaluations")
    step = metrics[-1]["step"] if metrics else 0
    return [
        name,
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
    """The recorded status; a run that says running but that no process holds was killed."""
    status = str(record["status"])
    if status == rundir.Status.running.name and not held(run):
        return f"killed (gpt2exp resume {run})"
    inexact = " (inexact resume)" if record.get("inexact") else ""
    reason = f" ({record['reason']})" if record.get("reason") else ""
    return status + inexact + reason


def held(run: Path) -> bool:
    """Whether a process holds the run's lock."""
    lock = FileLock(run / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def number(value: float | None) -> str:
    """Four decimals, or a dash for what is missing."""
    return "-" if value is None else f"{value:.4f}"
