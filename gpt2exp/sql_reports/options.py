"""What the commands of `gpt2exp sql` share: options, tables and CSV files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gpt2exp import atomic
from gpt2exp.errors import StorageError
from gpt2exp.spectral.tables import csv_text
from gpt2exp.verbs.status import PIPE_WIDTH
from gpt2exp.verbs_help import VerbParser

HOSTS = ("duckdb", "datafusion")


def add_common(parser: VerbParser, reps: int) -> None:
    """--hosts, --reps and --csv."""
    parser.add_argument("--hosts", type=hosts, default=HOSTS)
    parser.add_argument("--reps", type=positive, default=reps)
    parser.add_argument("--csv", type=csv_path, metavar="FILE")


def hosts(text: str) -> tuple[str, ...]:
    """`duckdb,datafusion` or one of them."""
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in HOSTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"'{unknown[0]}' is no host; there is {' and '.join(HOSTS)}")
    return names


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1")
    return int(text)


def csv_path(text: str) -> Path:
    """Where a CSV file can be written; asked before minutes of measuring."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' cannot be written: expected a file in a folder that is there")
    return path


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Publish rows; `repr` floats, missing values as empty cells.

    Raises:
        StorageError: the disk refused.
    """
    try:
        atomic.write_text(path, csv_text(rows))
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from None
    print(f"wrote {path}")


def aligned(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table for reading; numbers to the right, a column that is empty everywhere left out."""
    columns = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    table = Table(box=None, pad_edge=False)
    for name in columns:
        text = any(isinstance(row[name], str) for row in rows)
        table.add_column(name.replace("_", " "), justify="left" if text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(shown(name, row[name]) for name in columns))
    console = Console(highlight=False, markup=False, emoji=False, width=PIPE_WIDTH)
    with console.capture() as printed:
        console.print(table)
    return "".join(line.rstrip() + "\n" for line in printed.get().splitlines())


def shown(name: str, value: Any) -> str:
    """A cell: errors in powers of ten, other numbers with three digits or more."""
    if value is None:
        return "-"
    if name == "loss":
        return f"{value:.5f}"
    if isinstance(value, float):
        return f"{value:.1e}" if "error" in name else f"{value:.3g}" if value < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and name not in "BHTD" else str(value)
