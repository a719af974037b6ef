"""Gradients of the loss: rewritten by the gradient library at first, then replayed.

The library turns statements with `grad(loss, w)` into a program: steps, each a plan whose rows become a table, and
statements that read the last of them. Parsing, differentiating and checking take most of a small step's time and
give the same program every time. From the third run on only the steps are run, as they were captured in the second; the
rows are the same to the bit. Other statements, or a table whose columns changed, begin anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpt2exp.engines.sql.statement import Statement
from gpt2exp.engines.sql.update import Step

if TYPE_CHECKING:
    from gpt2exp.engines.base import Array
    from gpt2exp.engines.sql.arrays import Columns
    from gpt2exp.engines.sql.hosts import Host

CAPTURED_AT = 2
"""Which run of equal statements is captured: the library keeps a program after the first."""


@dataclass(frozen=True, eq=False)
class Program:
    """Steps (table, plan), and what is read of them in the end: keys and a column `value`."""

    steps: tuple[tuple[str, bytes], ...]
    reads: tuple[Step, ...]


class Gradients:
    """Runs statements that call `grad`, over and over.

    Args:
        host: the database.
        reads: tables that the statements read.
        enabled: False rewrites them every time.
    """

    def __init__(self, host: Host, reads: Sequence[str], enabled: bool) -> None:
        from gpt2exp.engines.sql.hosts import library

        self.host = host
        self.reads = tuple(reads)
        self.enabled = enabled
        self.ddxdb = library("ddxdb")
        self.programs = self.ddxdb.Programs()
        self.captured: Program | None = None
        self.runs = 0
        self.replays = 0
        self._key: Any = None

    def run(self, steps: Sequence[Step]) -> tuple[float, list[Array]]:
        """The loss, and column `value` of each statement in the order of its keys.

        Raises:
            RefusedError: the library or the database refuses a statement; it is named.
        """
        key = (tuple(step.statement.sql for step in steps), self.host.schemas(self.reads))
        if key != self._key:
            self._key, self.captured, self.runs = key, None, 0
        self.runs += 1
        if self.captured is not None:
            self.replays += 1
            found = self.host.replay(self.captured)
        else:
            found = self._rewritten(steps)
        loss, *values = (columns["value"] for columns in found)
        return float(loss[0]), values

    def _rewritten(self, steps: Sequence[Step]) -> list[Columns]:
        from gpt2exp.engines.sql.hosts import ours

        host, texts = self.host, [step.statement.sql for step in steps]
        host.backend.steps.clear()
        with (
            ours(host.name, steps[0].statement.name, texts[0]),
            self.ddxdb.rewrite(host.backend, texts, host.name, self.programs) as rewritten,
        ):
            (value,) = (name for name in rewritten.tables if name.endswith("_value"))
            loss = Step(Statement("loss", "the loss itself", f'SELECT x AS value FROM "{value}"'), ())
            reads = (loss, *map(with_text, steps, rewritten.statements))
            found = [host.fetch(read.ordered) for read in reads]
            if self.enabled and self.runs >= CAPTURED_AT:
                self.captured = Program(needed(host.backend.steps, reads), reads)
        return found


def needed(steps: Sequence[tuple[str, bytes]], reads: Sequence[Step]) -> tuple[tuple[str, bytes], ...]:
    """The steps that `reads` read, or that these read; the others only told the library what columns look like."""
    kept: list[tuple[str, bytes]] = []
    for name, plan in reversed(steps):
        read = any(name in step.statement.sql for step in reads)
        if read or any(name.encode() in later for _, later in kept):
            kept.append((name, plan))
    return tuple(reversed(kept))


def with_text(step: Step, sql: str) -> Step:
    """The step with another spelling of its statement."""
    return replace(step, statement=replace(step.statement, sql=sql))
