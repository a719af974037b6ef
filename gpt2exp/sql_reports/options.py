"""What the commands of `gpt2exp sql` share: options with our errors, tables and CSV files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

from gpt2exp import atomic
from gpt2exp.errors import ConfigError
from gpt2exp.spectral.tables import csv_text
from gpt2exp.verbs.status import PIPE_WIDTH
from gpt2exp.verbs_help import HelpShown

HOSTS = ("duckdb", "datafusion")


class Parser(argparse.ArgumentParser):
    """argparse with our errors; `doc` is the command's documentation, with a line that begins with Usage."""

    def __init__(self, command: str, doc: str | None) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        assert doc is not None
        self.command = command
        self.doc = doc

    def error(self, message: str) -> NoReturn:
        """One line, exit 2."""
        usage = next(line for line in self.doc.splitlines() if line.startswith("Usage:"))
        raise ConfigError(f"{self.command}: {message}. {usage}")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options, after answering --help.

        Raises:
            ConfigError: they do not fit.
            HelpShown: `--help` was given.
        """
        if {"-h", "--help"} & set(arguments):
            print(f"gpt2exp {self.doc.strip()}")
            raise HelpShown(0)
        return self.parse_args(list(arguments))


def add_common(parser: Parser, reps: int) -> None:
    """--hosts, --reps and --csv."""
    parser.add_argument("--hosts", type=hosts, default=HOSTS)
    parser.add_argument("--reps", type=positive, default=reps)
    parser.add_argument("--csv", type=Path, metavar="FILE")


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


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Publish rows; `repr` floats, missing values as empty cells.

    Raises:
        OSError: the disk refused.
    """
    atomic.write_text(path, csv_text(rows))
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
