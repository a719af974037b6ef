"""DuckDB: planned by DataFusion on empty tables, executed by DuckDB; nothing is downloaded.

The gradient library's own DuckDB backend needs an extension that is downloaded at run time. Here DataFusion's Substrait
producer plans each query on a mirror of the schemas, without rows, and the library writes plans as DuckDB's SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpt2exp.engines.sql.arrays import Columns
from gpt2exp.engines.sql.duckdb_backend import DuckDBBackend
from gpt2exp.engines.sql.hosts import RESERVED, Deadline, arrow, library, numpy_columns, ours
from gpt2exp.engines.sql.replay import Program
from gpt2exp.engines.sql.statement import Statement, with_tables
from gpt2exp.engines.sql.update import Step

DISABLED = ("join_order", "build_side_probe_side", "statistics_propagation", "compressed_materialization")
"""Optimizers of DuckDB. The first two choose by sizes: without them rows are added up in an order that follows from
the query alone, so that a query over tables and the same over common table expressions agree to the bit. The others
write the smallest and largest value of a column into the plan: a prepared statement keeps them when the table changes
and loses rows that are outside (measured: gradients off by a tenth once a batch held other tokens)."""
SETTINGS = (
    "SET threads = 1",
    "SET preserve_insertion_order = true",
    f"SET disabled_optimizers = '{','.join(DISABLED)}'",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET temp_directory = ''",
)
"""The last: where memory ends, an error says so, and nothing is spilled into the folder of whoever runs this."""


class DuckDBHost:
    """An in-memory database; implements `gpt2exp.engines.sql.hosts.Host`."""

    name = "duckdb"

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.connection = library("duckdb").connect()
        for setting in SETTINGS:
            self.connection.execute(setting)
        self.backend = DuckDBBackend(self.connection, deadline)
        self._loaded: dict[str, tuple[tuple[str, ...], bytes]] = {}
        self._rows: dict[str, int] = {}
        self._prepared: dict[str, str] = {}
        self._query: tuple[Program, str] | None = None

    def load(self, table: str, keys: Sequence[str], columns: Columns) -> None:
        """A table with the same keys keeps its rows and gets new values, so that prepared statements stay planned."""
        given = (tuple(columns), b"".join(columns[key].tobytes() for key in keys))
        values = [name for name in columns if name not in keys]
        with ours(self.name, table, f"load {table}"):
            # DuckDB finds `staged` by its name.
            staged = arrow(columns)
            if self._loaded.get(table) == given:
                refilled = self.connection.execute(refill(table, keys, values, "SELECT * FROM staged")).fetchone()
                assert refilled == (staged.num_rows,), f"{table}: {refilled} of {staged.num_rows} rows were found"
            else:
                self.connection.execute(f'CREATE OR REPLACE TABLE "{table}" AS SELECT * FROM staged')
                self._created(table, staged.num_rows)
        self._loaded[table] = given

    def store(self, step: Step) -> None:
        """In place: rows stay where they are, whatever the query's order."""
        table, sql = step.statement.name, with_tables(step.before, step.statement.sql)
        with self._running(table, step.statement.sql):
            if table in self._rows:
                values = [name for name, _ in self.backend.schema(table) if name not in step.keys]
                refilled = self._execute(refill(table, step.keys, values, sql)).fetchone()
                assert refilled == (self._rows[table],), f"{table}: {refilled} of {self._rows[table]} rows were found"
            else:
                order = f" ORDER BY {', '.join(step.keys)}" if step.keys else ""
                rows = self.connection.execute(f'CREATE TABLE "{table}" AS SELECT * FROM ({sql}){order}').fetchone()
                self._created(table, rows[0])

    def fetch(self, select: str, before: Sequence[Statement] = ()) -> Columns:
        """Prepared once, but for what reads tables that come and go."""
        sql = with_tables(before, select)
        with self._running(before[-1].name if before else "asked for", select):
            found = self.connection.execute(sql) if RESERVED in sql else self._execute(sql)
            return numpy_columns(found.to_arrow_table())

    def replay(self, program: Program) -> list[Columns]:
        """The whole program as one prepared query: its steps are common table expressions."""
        if self._query is None or self._query[0] is not program:
            self._query = (program, one_query(program))
        with self._running(program.reads[-1].statement.name, "a captured program"):
            found = numpy_columns(self._execute(self._query[1]).to_arrow_table())
        numbers = found.pop("n")
        return [{"value": found["value"][numbers == n]} for n in range(len(program.reads))]

    def schemas(self, names: Sequence[str]) -> Any:
        """Columns and types of the tables."""
        return [self.backend.schema(name) for name in names]

    def close(self) -> None:
        """End the connection; its tables go with it."""
        self.connection.close()

    @contextmanager
    def _running(self, table: str, sql: str) -> Iterator[None]:
        """A statement inside is named when it fails, and interrupted when the time is over."""
        with ours(self.name, table, sql), self.deadline.interrupting(self.connection.interrupt):
            yield

    def _created(self, table: str, rows: int) -> None:
        self._rows[table] = rows
        self.backend.declare(table)

    def _execute(self, sql: str) -> Any:
        if sql not in self._prepared:
            name = f"prepared_{len(self._prepared)}"
            self.connection.execute(f"PREPARE {name} AS {sql}")
            self._prepared[sql] = name
        return self.connection.execute(f"EXECUTE {self._prepared[sql]}")


def refill(table: str, keys: Sequence[str], values: Sequence[str], sql: str) -> str:
    """Give a table's rows new values by their keys."""
    new = ", ".join(f"{value} = n.{value}" for value in values)
    where = " WHERE " + " AND ".join(f"{table}.{key} = n.{key}" for key in keys) if keys else ""
    return f"UPDATE {table} SET {new} FROM ({sql}) n{where}"


def one_query(program: Program) -> str:
    """All steps, then every statement's rows: number `n` of the statement, keys side by side, value."""
    to_sql = library("ddxdb._ddxdb").to_sql
    steps = [f'"{name}" AS MATERIALIZED (\n{to_sql(plan, "duckdb")}\n)' for name, plan in program.steps]
    width = max(len(read.keys) for read in program.reads)
    reads = []
    for number, read in enumerate(program.reads):
        keys = [*read.keys, *["NULL::INTEGER"] * (width - len(read.keys))]
        named = ", ".join(f"{key} AS k{i}" for i, key in enumerate(keys))
        reads.append(f"SELECT {number} AS n, {named}, value FROM ({read.statement.sql})")
    order = ", ".join(["n", *(f"k{i}" for i in range(width))])
    together = "\nUNION ALL\n".join(reads)
    return "WITH " + ",\n".join(steps) + f"\nSELECT n, value FROM (\n{together}\n)\nORDER BY {order}"
