"""Tables of a DataFusion session whose rows may change under a plan that reads them.

Parsing, planning and optimizing a small query takes several times as long as running it, and DataFusion's own tables
are copied into a plan when it is made. Here a table is an Arrow data set that hands out its rows when the plan is
run, so that a query is planned once. A data set tells DataFusion nothing of its size: joins are done in the order in
which they are written, whatever the tables hold, and sums are added up in an order that follows from the query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from gpt2exp.engines.sql.hosts import library

BATCH_ROWS = 8192
"""Rows that DataFusion takes at a time."""


class Scan:
    """What a plan asks of a table: all columns or some, all rows or those of a filter."""

    def __init__(self, table: Any, columns: Sequence[str] | None, kept: Any) -> None:
        self.table = table
        self.columns = columns
        self.kept = kept
        self.projected_schema = table.projected(columns)

    def to_batches(self) -> Iterator[Any]:
        """The rows that the table holds now, in their order."""
        assert self.table.rows is not None, f"a plan reads a table that was dropped: {self.table.schema.names}"
        rows = self.table.rows if self.kept is None else filtered(self.table.rows, self.kept)
        if self.columns is not None:
            rows = rows.select(self.columns)
        return iter(rows.to_batches(max_chunksize=BATCH_ROWS))


def filtered(rows: Any, kept: Any) -> Any:
    """The rows for which an Arrow expression holds, by one thread: faster here, and their order stays."""
    acero = library("pyarrow.acero")
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))
    return acero.Declaration("filter", acero.FilterNodeOptions(kept), [source]).to_table(use_threads=False)


@cache
def live_table() -> Any:
    """The class: its base is in a library that may be missing."""
    base: Any = library("pyarrow.dataset").Dataset

    class LiveTable(base):  # type: ignore[misc]
        """`rows` is an Arrow table and can be replaced by another with the same columns."""

        def __init__(self, rows: Any) -> None:
            self._schema = rows.schema
            self._projected: dict[tuple[str, ...], Any] = {}
            self.rows = rows

        @property
        def schema(self) -> Any:
            """Columns and types."""
            return self._schema

        def projected(self, columns: Sequence[str] | None) -> Any:
            """Columns and types of some columns: asked for hundreds of times a step."""
            if columns is None:
                return self._schema
            key = tuple(columns)
            if key not in self._projected:
                self._projected[key] = library("pyarrow").schema([self._schema.field(name) for name in key])
            return self._projected[key]

        def scanner(self, schema: Any = None, columns: Any = None, filter: Any = None, **_: Any) -> Scan:
            """Asked for by a plan: when it is made for the columns, and when it is run for the rows."""
            return Scan(self, columns, filter)

        def get_fragments(self, filter: Any = None) -> Iterator[Any]:
            """A data set comes in parts, each with a scanner; this is one part, itself."""
            return iter([self])

    return LiveTable


class Session:
    """Plans queries over named tables, and runs plans; one partition, so nothing runs beside anything else."""

    def __init__(self) -> None:
        datafusion = library("datafusion")
        config = datafusion.SessionConfig().with_information_schema(True).with_target_partitions(1)
        self.context = datafusion.SessionContext(config)
        self._substrait = library("datafusion.substrait")
        optimized = datafusion.SessionConfig().with_target_partitions(1).set("datafusion.optimizer.max_passes", "0")
        self._runner = datafusion.SessionContext(optimized)
        self._tables: dict[str, Any] = {}

    def put(self, name: str, rows: Any) -> Any:
        """A new table in place of any of that name."""
        self.drop(name)
        table = self._tables[name] = live_table()(rows)
        self.context.register_dataset(name, table)
        return table

    def drop(self, name: str) -> None:
        """No query finds the table from here on, and a plan that still reads it fails: its rows are gone."""
        if name in self._tables:
            self.context.deregister_table(name)
            self._tables.pop(name).rows = None

    def hide(self, name: str) -> None:
        """No query finds the table from here on; plans that read it live on."""
        self.context.deregister_table(name)
        del self._tables[name]

    def plan(self, query: str | bytes) -> Any:
        """The optimized plan of SQL, or of a plan in Substrait; it holds on to its tables, whatever their rows."""
        if isinstance(query, str):
            return self.context.sql(query).optimized_logical_plan()
        logical = self._substrait.Consumer.from_substrait_plan(
            self.context, self._substrait.Serde.deserialize_bytes(query)
        )
        return self.context.create_dataframe_from_logical_plan(logical).optimized_logical_plan()

    def run(self, plan: Any) -> Any:
        """The rows of an optimized plan as an Arrow table."""
        return self._runner.create_dataframe_from_logical_plan(plan).to_arrow_table()
