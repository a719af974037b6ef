"""What an update's statements are about: tables of one parameter group, and steps that fill tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpt2exp.engines.sql.statement import Statement
from gpt2exp.engines.sql.tables import Table
from gpt2exp.errors import RefusedError
from gpt2exp.optim.base import Rule
from gpt2exp.optim.param_groups import OwnedGroup


@dataclass(frozen=True)
class Step:
    """A statement whose rows take the place of a table's; `keys` tell rows apart (none: one row).

    `before` are the statements that it reads and nobody else does.
    """

    statement: Statement
    keys: tuple[str, ...]
    before: tuple[Statement, ...] = ()

    @property
    def ordered(self) -> str:
        """The statement, ordered by the keys."""
        order = f"\nORDER BY {', '.join(self.keys)}" if self.keys else ""
        return f"SELECT * FROM (\n{self.statement.sql}\n){order}"


@dataclass(frozen=True)
class TableGroup:
    """A parameter group by its tables; its gradients are clipped where `clipped`."""

    name: str
    rule: Rule
    tables: tuple[Table, ...]
    clipped: bool

    @property
    def gradient(self) -> str:
        """A gradient, clipped where the clip covers this group; of the tables that `join` names."""
        return "g.g * n.coef" if self.clipped else "g.g"

    @property
    def clip(self) -> str:
        """What a statement with a gradient reads first; DataFusion is slow at a large table times a row after it."""
        return "clip n CROSS JOIN " if self.clipped else ""

    def join(self, table: Table) -> str:
        """What a statement over the weights or the state of a table joins to have its gradient."""
        return f"JOIN {table.grad} g USING ({table.keys})"


def by_tables(group: OwnedGroup, tables: Sequence[Table], clipped: bool) -> TableGroup:
    """The group's tables.

    Raises:
        RefusedError: it owns some layers of a table but not all: a statement updates whole tables.
    """
    names = {tensor.name for tensor in group.tensors}
    owned = tuple(table for table in tables if names.issuperset(table.tensors))
    rest = sorted(names.difference(*(table.tensors for table in owned)))
    if rest:
        raise RefusedError(
            f"parameter group '{group.name}' owns {rest[0]} but not the same tensor of every layer: the SQL engine "
            "updates whole tables; use hardware=cpu"
        )
    return TableGroup(group.name, group.rule, owned, clipped)
