"""Queries in order on DataFusion, each filling a table that later ones read; planned at the first run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpt2exp.engines.sql.hosts import Deadline, library, ours
from gpt2exp.engines.sql.live_tables import Session
from gpt2exp.engines.sql.statement import Statement


@dataclass(frozen=True)
class Fill:
    """The rows of `queries`, one behind the other, become table `name`; a query is SQL or a plan in Substrait."""

    name: str
    queries: tuple[str | bytes, ...]

    @property
    def text(self) -> str:
        """For messages."""
        return " UNION ALL ".join(q if isinstance(q, str) else "a step of the gradient's program" for q in self.queries)


def fill(statement: Statement) -> Fill:
    """A statement's rows become the table that it names."""
    return Fill(statement.name, (statement.sql,))


class Chain:
    """Runs `fills`, then `reads`: the same queries over and over, while the rows of the tables that they read change.

    The tables of `fills` are the chain's own: other queries find them only while its first run lasts.
    """

    def __init__(self, session: Session, deadline: Deadline, fills: Sequence[Fill], reads: Sequence[Fill]) -> None:
        self.session = session
        self.deadline = deadline
        self.fills = tuple(fills)
        self.reads = tuple(reads)
        self._plans: dict[Fill, list[Any]] = {}
        self._tables: dict[str, Any] = {}

    def run(self) -> list[Any]:
        """The rows of each of `reads` as an Arrow table.

        Raises:
            RefusedError: a query failed; its table and text are named. The next run plans anew.
            StoppedError: the deadline is over.
        """
        planned = bool(self._plans)
        try:
            for step in self.fills:
                self._put(step.name, self._rows(step))
            return [self._rows(read) for read in self.reads]
        except BaseException:
            self._plans.clear()
            raise
        finally:
            self._release(registered=not planned)

    def _rows(self, step: Fill) -> Any:
        self.deadline.check()
        with ours("datafusion", step.name, step.text):
            if step not in self._plans:
                self._plans[step] = [self.session.plan(query) for query in step.queries]
            return joined([self.session.run(plan) for plan in self._plans[step]])

    def _put(self, name: str, rows: Any) -> None:
        table = self._tables.get(name)
        if table is None:
            self._tables[name] = self.session.put(name, rows)
        else:
            assert table.schema.equals(rows.schema), f"{name}: {rows.schema} in place of {table.schema}"
            table.rows = rows

    def _release(self, registered: bool) -> None:
        for name, table in self._tables.items():
            table.rows = None
            if registered:
                self.session.hide(name)
        if not self._plans:
            self._tables.clear()


def joined(parts: Sequence[Any]) -> Any:
    """Rows one behind the other; the first part has the types."""
    if len(parts) == 1:
        return parts[0]
    return library("pyarrow").concat_tables([part.cast(parts[0].schema) for part in parts])
