"""What the SQL engine asks of a database, and what both databases share."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np

from gpt2exp.engines.sql.arrays import Columns
from gpt2exp.engines.sql.replay import Program
from gpt2exp.engines.sql.statement import Statement
from gpt2exp.engines.sql.update import Step
from gpt2exp.errors import Gpt2ExpError, RefusedError, StoppedError

LIBRARIES = ("ddxdb", "datafusion", "duckdb", "pyarrow")
WORKERS = "TOKIO_WORKER_THREADS"
"""How many threads DataFusion's runtime starts when a process first uses it: time, not bits, depends on it."""
RESERVED = "__ddx_"
"""What the names of the gradient library's tables begin with: they come and go."""
SHOWN = 300
"""Characters of a statement in a message."""


class Host(Protocol):
    """One connection of one run, one thread. Tables hold int32 keys and DOUBLE values."""

    @property
    def name(self) -> str:
        """`duckdb` or `datafusion`: a dialect of the gradient library too."""

    @property
    def backend(self) -> Any:
        """What the gradient library runs its programs on; its list `steps` grows by each step run."""

    @property
    def deadline(self) -> Deadline:
        """When to give up."""

    def load(self, table: str, keys: Sequence[str], columns: Columns) -> None:
        """Create or refill `table`; the arrays are copied."""

    def store(self, step: Step) -> None:
        """The rows of a statement take the place of its table's, in the order of the keys."""

    def fetch(self, select: str, before: Sequence[Statement] = ()) -> Columns:
        """The columns of a query that may read the statements `before`."""

    def replay(self, program: Program) -> list[Columns]:
        """Run a captured program: the columns of its statements, in order."""

    def schemas(self, names: Sequence[str]) -> Any:
        """Columns and types of the tables: equal as long as none changed."""

    def close(self) -> None:
        """Give everything back."""


@dataclass
class Deadline:
    """Seconds that one update may take; None: as many as it wants. Checked between statements, or inside one."""

    seconds: float | None = None
    started: float = 0.0

    def start(self) -> None:
        """An update begins."""
        self.started = time.monotonic()

    def check(self) -> None:
        """Give up an update that takes too long.

        Raises:
            StoppedError: it does.
        """
        if self.seconds is not None and time.monotonic() - self.started > self.seconds:
            raise StoppedError(f"an update took longer than hardware.step_deadline_seconds={self.seconds:g}")

    @contextmanager
    def interrupting(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Run a statement that `interrupt`, called from another thread, makes fail.

        Raises:
            StoppedError: the time is over, before the statement or inside it.
        """
        self.check()
        if self.seconds is None:
            yield
            return
        timer = threading.Timer(self.started + self.seconds - time.monotonic(), interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        except Exception:
            self.check()
            raise
        finally:
            timer.cancel()


def library(name: str) -> Any:
    """A library of the sql extra.

    Raises:
        RefusedError: it is not installed, or not the version that the engine was written for.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RefusedError(
            f"hardware=duckdb and hardware=datafusion need the sql extra ({error}); pip install 'gpt2exp[sql]'"
        ) from None


def check_libraries() -> None:
    """See that everything is there before a run starts.

    Raises:
        RefusedError: naming what is missing and how to install it.
    """
    os.environ.setdefault(WORKERS, "1")
    for name in LIBRARIES:
        library(name)
    try:
        importlib.import_module("ddxdb._ddxdb").to_sql  # noqa: B018
    except (ImportError, AttributeError):
        raise RefusedError(
            f"ddxdb {version('ddxdb')}: not the version this engine was written for; pip install 'gpt2exp[sql]'"
        ) from None


def versions() -> dict[str, str]:
    """Versions of everything that computes."""
    return {name: version(name) for name in LIBRARIES}


@contextmanager
def ours(host: str, table: str, sql: str) -> Iterator[None]:
    """Errors of the libraries name the table and the statement.

    Raises:
        RefusedError: for each of theirs; ours go through.
    """
    try:
        yield
    except (Gpt2ExpError, AssertionError):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        statement = " ".join(sql.split())
        shown = statement if len(statement) <= SHOWN else f"{statement[:SHOWN]} ..."
        raise RefusedError(f"{host} failed at table {table}: {lines[0]}; the statement is: {shown}") from error


def arrow(columns: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """An Arrow table of copies: views of arrays that change later would change the table with them."""
    pa = library("pyarrow")
    return pa.table({name: pa.array(np.array(column, copy=True)) for name, column in columns.items()})


def numpy_columns(table: Any) -> Columns:
    """Copies of an Arrow table's columns; a NULL among numbers becomes NaN."""
    return {name: np.array(table.column(name).to_numpy(zero_copy_only=False), copy=True) for name in table.column_names}


def build_host(kind: str, deadline_seconds: float | None = None) -> Host:
    """The database of a hardware kind.

    Raises:
        RefusedError: the sql extra is missing.
    """
    check_libraries()
    if kind == "duckdb":
        from gpt2exp.engines.sql.duckdb_host import DuckDBHost

        return DuckDBHost(Deadline(deadline_seconds))
    from gpt2exp.engines.sql.datafusion_host import DataFusionHost

    assert kind == "datafusion", kind
    return DataFusionHost(Deadline(deadline_seconds))
