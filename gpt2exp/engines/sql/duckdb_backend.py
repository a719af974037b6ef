"""Lets the gradient library run on DuckDB with plans made by DataFusion."""

from __future__ import annotations

from typing import Any

from gpt2exp.engines.sql.hosts import Deadline, library

ARROW_TYPES = {
    "BIGINT": "int64",
    "BOOLEAN": "bool_",
    "DOUBLE": "float64",
    "HUGEINT": "int64",
    "INTEGER": "int32",
    "UBIGINT": "uint64",
    "VARCHAR": "string",
}
"""DuckDB's types that occur here, as pyarrow's."""

Schema = tuple[tuple[str, str], ...]


class DuckDBBackend:
    """The protocol `ddxdb.Backend`: plans cross as Substrait, rows stay in DuckDB."""

    def __init__(self, connection: Any, deadline: Deadline) -> None:
        self.connection = connection
        self.deadline = deadline
        self.steps: list[tuple[str, bytes]] = []
        self._tables: dict[str, Schema] = {}
        self._planner = library("datafusion").SessionContext()
        self._serde = library("datafusion.substrait").Serde
        self._to_sql = library("ddxdb._ddxdb").to_sql

    def declare(self, table: str) -> None:
        """Mirror the columns of a table that was just created."""
        described = self.connection.execute(f'DESCRIBE "{table}"').fetchall()
        self._tables[table] = tuple((row[0], row[1]) for row in described)
        self._mirror(table, self._tables[table])

    def schema(self, table: str) -> Schema:
        """Columns and types of a declared table."""
        return self._tables[table]

    def select_all(self, name: str) -> bytes:
        """The plan of a whole table."""
        return self.plan_sql(f'SELECT * FROM "{name}"')

    def plan_sql(self, sql: str) -> bytes:
        """The plan of a query."""
        return bytes(self._serde.serialize_bytes(sql, self._planner))

    def plan_key(self, sql: str) -> str:
        """Plans depend on the query and the tables' columns."""
        return repr((sql, sorted(self._tables.items())))

    def view_sql(self, name: str) -> None:
        """There are no views."""
        return

    def returns_rows(self, plan: bytes) -> bool:
        """Whether a check found anything."""
        query = self._to_sql(plan, "duckdb")
        return self.connection.execute(f"SELECT 1 FROM ({query}) AS c LIMIT 1").fetchone() is not None

    def materialize(self, name: str, plan: bytes) -> None:
        """Run a step; its table lives until the program is released."""
        with self.deadline.interrupting(self.connection.interrupt):
            self.connection.execute(f'CREATE OR REPLACE TEMP TABLE "{name}" AS {self._to_sql(plan, "duckdb")}')
        described = self.connection.execute(f'DESCRIBE "{name}"').fetchall()
        self._mirror(name, tuple((row[0], row[1]) for row in described))
        self.steps.append((name, plan))

    def drop_table(self, name: str) -> None:
        """Drop a step's table."""
        self.connection.execute(f'DROP TABLE IF EXISTS temp.main."{name}"')
        self._planner.deregister_table(name)

    def _mirror(self, table: str, columns: Schema) -> None:
        pa = library("pyarrow")
        schema = pa.schema([(name, getattr(pa, ARROW_TYPES[kind])()) for name, kind in columns])
        self._planner.deregister_table(table)
        self._planner.register_record_batches(table, [[pa.RecordBatch.from_pylist([], schema=schema)]])
