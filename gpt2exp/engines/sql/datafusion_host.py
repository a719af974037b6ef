"""DataFusion: every statement of a model is made a table in order.

DataFusion writes common table expressions into each place that reads them; a model's statements as one query would
become tens of thousands of operators. As tables they are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpt2exp.engines.sql.arrays import Columns
from gpt2exp.engines.sql.hosts import Deadline, arrow, library, numpy_columns, ours
from gpt2exp.engines.sql.replay import Program
from gpt2exp.engines.sql.statement import Statement
from gpt2exp.engines.sql.unions import OrderedUnions, register
from gpt2exp.engines.sql.update import Step


class DataFusionHost:
    """A session with one partition; implements `gpt2exp.engines.sql.hosts.Host`."""

    name = "datafusion"

    def __init__(self, deadline: Deadline) -> None:
        datafusion = library("datafusion")
        self.deadline = deadline
        config = datafusion.SessionConfig().with_information_schema(True).with_target_partitions(1)
        self.context = datafusion.SessionContext(config)
        self.backend = recording_backend(self.context, deadline)
        self._schemas: dict[str, Any] = {}

    def load(self, table: str, keys: Sequence[str], columns: Columns) -> None:
        """One batch in the order given."""
        with ours(self.name, table, f"load {table}"):
            self._register(table, arrow(columns))

    def store(self, step: Step) -> None:
        """The rows are computed, ordered by the keys, and registered in place of the old ones."""
        order = f"\nORDER BY {', '.join(step.keys)}" if step.keys else ""
        rows = self._rows(f"SELECT * FROM ({step.statement.sql}){order}", step.before, step.statement.name)
        self._register(step.statement.name, arrow(numpy_columns(rows)))

    def fetch(self, select: str, before: Sequence[Statement] = ()) -> Columns:
        """Plans are made anew: they hold on to the tables they were made for."""
        return numpy_columns(self._rows(select, before, before[-1].name if before else "asked for"))

    def replay(self, program: Program) -> list[Columns]:
        """Steps become tables again, as they did when the library ran them."""
        with ours(self.name, program.reads[-1].statement.name, "a captured program"):
            for name, plan in program.steps:
                self.backend.materialize(name, plan)
            found = [self._rows(read.ordered, (), read.statement.name) for read in program.reads]
            for name, _ in program.steps:
                self.backend.drop_table(name)
        return [numpy_columns(rows.select(["value"])) for rows in found]

    def schemas(self, names: Sequence[str]) -> Any:
        """Columns and types of the tables."""
        return [self._schemas[name] for name in names]

    def close(self) -> None:
        """Drop every table."""
        for table in self._schemas:
            self.context.deregister_table(table)

    def _rows(self, select: str, before: Sequence[Statement], table: str) -> Any:
        try:
            for statement in before:
                with ours(self.name, statement.name, statement.sql):
                    register(self.context, statement.name, self._run(statement.sql))
            with ours(self.name, table, select):
                return self._run(select)
        finally:
            for statement in before:
                self.context.deregister_table(statement.name)

    def _run(self, sql: str) -> Any:
        self.deadline.check()
        return self.context.sql(sql).to_arrow_table()

    def _register(self, table: str, rows: Any) -> None:
        self._schemas[table] = tuple((field.name, str(field.type)) for field in rows.schema)
        register(self.context, table, rows)


def recording_backend(context: Any, deadline: Deadline) -> Any:
    """The gradient library's own backend, which remembers the steps it ran."""
    base: Any = library("ddxdb.ad").DataFusionBackend
    ordered = OrderedUnions(context)

    class Recording(base):  # type: ignore[misc]
        """`steps` are those run since it was last cleared."""

        steps: list[tuple[str, bytes]]

        def materialize(self, name: str, plan: bytes) -> None:
            deadline.check()
            queries = ordered.queries(plan)
            if queries:
                register(context, name, ordered.rows(queries))
            else:
                super().materialize(name, plan)
            self.steps.append((name, plan))

    backend = Recording(context)
    backend.steps = []
    return backend
