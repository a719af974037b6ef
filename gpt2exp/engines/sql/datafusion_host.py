"""DataFusion: every statement of a model is made a table in order.

DataFusion writes common table expressions into each place that reads them; a model's statements as one query would
become tens of thousands of operators. As tables they are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpt2exp.engines.sql.arrays import Columns
from gpt2exp.engines.sql.chains import Chain, Fill, fill
from gpt2exp.engines.sql.hosts import RESERVED, Deadline, arrow, library, numpy_columns, ours
from gpt2exp.engines.sql.live_tables import Session
from gpt2exp.engines.sql.replay import Program
from gpt2exp.engines.sql.statement import Statement
from gpt2exp.engines.sql.unions import ordered
from gpt2exp.engines.sql.update import Step


class DataFusionHost:
    """A session with one partition; implements `gpt2exp.engines.sql.hosts.Host`."""

    name = "datafusion"

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.session = Session()
        self.context = self.session.context
        self.backend = recording_backend(self.session, deadline)
        self._tables: dict[str, Any] = {}
        self._chains: dict[Any, Chain] = {}

    def load(self, table: str, keys: Sequence[str], columns: Columns) -> None:
        """A table with the same columns gets other rows, in the order given: plans that read it stay."""
        with ours(self.name, table, f"load {table}"):
            rows, known = arrow(columns), self._tables.get(table)
            if known is not None and known.schema.equals(rows.schema):
                known.rows = rows
            else:
                self._tables[table] = self.session.put(table, rows)
                self._chains.clear()

    def store(self, step: Step) -> None:
        """The rows are computed, ordered by the keys, and take the place of the old ones."""
        rows = self._rows(step.before, step.statement.name, step.ordered)
        self.load(step.statement.name, step.keys, numpy_columns(rows))

    def fetch(self, select: str, before: Sequence[Statement] = ()) -> Columns:
        """Planned once, but for what reads tables that come and go."""
        return numpy_columns(self._rows(before, before[-1].name if before else "asked for", select))

    def replay(self, program: Program) -> list[Columns]:
        """Steps become tables again, as they did when the library ran them."""
        if program not in self._chains:
            fills = [part for name, plan in program.steps for part in ordered(name, plan)]
            reads = [Fill(read.statement.name, (read.ordered,)) for read in program.reads]
            self._chains[program] = Chain(self.session, self.deadline, fills, reads)
        return [numpy_columns(rows.select(["value"])) for rows in self._chains[program].run()]

    def schemas(self, names: Sequence[str]) -> Any:
        """Columns and types of the tables."""
        return [tuple((field.name, str(field.type)) for field in self._tables[name].schema) for name in names]

    def close(self) -> None:
        """Drop every table."""
        self._chains.clear()
        for table in self._tables:
            self.session.drop(table)

    def _rows(self, before: Sequence[Statement], name: str, select: str) -> Any:
        key = (tuple(before), select)
        chain = self._chains.get(key)
        if chain is None:
            fills = [fill(statement) for statement in before]
            chain = Chain(self.session, self.deadline, fills, [Fill(name, (select,))])
            if RESERVED not in select:
                self._chains[key] = chain
        (rows,) = chain.run()
        return rows


def recording_backend(session: Session, deadline: Deadline) -> Any:
    """The gradient library's own backend, which remembers the steps it ran."""
    base: Any = library("ddxdb.ad").DataFusionBackend

    class Recording(base):  # type: ignore[misc]
        """`steps` are those run since it was last cleared."""

        steps: list[tuple[str, bytes]]

        def materialize(self, name: str, plan: bytes) -> None:
            *fills, last = ordered(name, plan)
            (rows,) = Chain(session, deadline, fills, [last]).run()
            session.put(name, rows)
            self.steps.append((name, plan))

        def drop_table(self, name: str) -> None:
            session.drop(name)

    backend = Recording(session.context)
    backend.steps = []
    return backend
