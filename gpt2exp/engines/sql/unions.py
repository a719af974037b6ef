"""Runs DataFusion plans so that sums over a UNION ALL are added up in the order of its parts.

DataFusion computes the parts as tasks of a thread pool and takes rows as they come; what is added up over them, such as
the gradient of a tensor with three uses, differs in its last bits from call to call. Here every part is computed on
its own, the parts are laid one behind the other in a table, and the rest of the plan reads that table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gpt2exp.engines.sql.hosts import library

UNION = " UNION ALL "
OVER_UNION = re.compile(rf"(SELECT .* FROM )\((.*?{UNION}.*)\)( AS \w+)", re.DOTALL)
NAME = re.compile(r"__ddx_q\d+")


class OrderedUnions:
    """Computes plans of one session; `texts` keeps a plan's queries, since the same plans come every step."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.texts: dict[bytes, list[tuple[str, str]]] = {}
        self._to_sql = library("ddxdb._ddxdb").to_sql
        self._concat = library("pyarrow").concat_tables

    def queries(self, plan: bytes) -> list[tuple[str, str]]:
        """The plan's named parts in order, the query itself last (without a name); empty without a UNION ALL."""
        if plan not in self.texts:
            sql = self._to_sql(plan, "datafusion")
            self.texts[plan] = list(named_parts(sql)) if UNION in sql else []
        return self.texts[plan]

    def rows(self, queries: list[tuple[str, str]]) -> Any:
        """The rows of a plan as an Arrow table."""
        known: dict[str, str] = {}
        unions: list[str] = []
        try:
            for name, body in queries[:-1]:
                known[name] = body
                if UNION in body:
                    unions.append(f"__ddx_union_{len(unions)}")
                    known[name] = self._laid_out(body, known, unions[-1])
            return self._run(queries[-1][1], known)
        finally:
            for table in unions:
                self.context.deregister_table(table)

    def _laid_out(self, body: str, known: dict[str, str], table: str) -> str:
        match = OVER_UNION.fullmatch(body)
        assert match is not None, f"a UNION ALL of an unknown form: {body}"
        parts = [self._run(part, known) for part in match[2].split(UNION)]
        register(self.context, table, self._concat([part.cast(parts[0].schema) for part in parts]))
        return f"{match[1]}{table}{match[3]}"

    def _run(self, select: str, known: dict[str, str]) -> Any:
        needed = needs(select, known)
        parts = ", ".join(f"{name} AS ({body})" for name, body in known.items() if name in needed)
        return self.context.sql(f"WITH {parts} {select}" if parts else select).to_arrow_table()


def register(context: Any, table: str, rows: Any) -> None:
    """An Arrow table as one batch, in place of a table of that name."""
    batches = rows.combine_chunks().to_batches()
    context.deregister_table(table)
    context.register_record_batches(table, [batches or [empty(rows.schema)]])


def empty(schema: Any) -> Any:
    """A batch without rows."""
    return library("pyarrow").RecordBatch.from_pylist([], schema=schema)


def needs(select: str, known: dict[str, str]) -> set[str]:
    """Names that a query reads, and those that these read."""
    found: set[str] = set()
    open_names = set(NAME.findall(select))
    while open_names:
        name = open_names.pop()
        found.add(name)
        open_names |= set(NAME.findall(known[name])) - found
    return found


def named_parts(sql: str) -> Iterator[tuple[str, str]]:
    """(name, body) of each common table expression, then ("", the query)."""
    assert sql.startswith("WITH "), sql
    position = len("WITH ")
    while True:
        start = sql.index(" AS (", position)
        end = closing(sql, start + len(" AS "))
        yield sql[position:start], sql[start + len(" AS (") : end]
        if not sql.startswith(", ", end + 1):
            yield "", sql[end + 1 :].strip()
            return
        position = end + len("), ")


def closing(sql: str, opening: int) -> int:
    """Position of the parenthesis that closes the one at `opening`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(sql, opening):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    raise AssertionError(f"unbalanced: {sql}")
