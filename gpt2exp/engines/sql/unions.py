"""Takes DataFusion plans apart so that sums over a UNION ALL are added up in the order of its parts.

DataFusion computes the parts as tasks of a thread pool and takes rows as they come; what is added up over them, such as
the gradient of a tensor with three uses, differs in its last bits from call to call. Here every part is a query of
its own, the parts are laid one behind the other in a table, and the rest of the plan reads that table.

A product of many rows with one row has the one row first: DataFusion goes through the left side row by row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from gpt2exp.engines.sql.chains import Fill
from gpt2exp.engines.sql.hosts import library

UNION = " UNION ALL "
CROSS = " CROSS JOIN "
"""In a gradient's program: with a table of one row, which the library writes last."""
ROW_LAST = re.compile(rf"(\S+ AS t\d+){CROSS}(\S+ AS t\d+)")
OVER_UNION = re.compile(rf"(SELECT .* FROM )\((.*?{UNION}.*)\)( AS \w+)", re.DOTALL)
NAME = re.compile(r"__ddx_q\d+")


@lru_cache(maxsize=1024)
def ordered(name: str, plan: bytes) -> tuple[Fill, ...]:
    """What fills table `name` with the rows of a plan of the gradient library: the plan, or its parts and the rest."""
    sql = library("ddxdb._ddxdb").to_sql(plan, "datafusion")
    if UNION not in sql and CROSS not in sql:
        return (Fill(name, (plan,)),)
    return tuple(taken_apart(name, ROW_LAST.sub(rf"\2{CROSS}\1", sql)))


def taken_apart(name: str, sql: str) -> Iterator[Fill]:
    """A fill for each UNION ALL, then one for the rest."""
    known: dict[str, str] = {}
    for number, (part, body) in enumerate(named_parts(sql)):
        if UNION in body:
            match = OVER_UNION.fullmatch(body)
            assert match is not None, f"a UNION ALL of an unknown form: {body}"
            table = f"{name}_union_{number}"
            yield Fill(table, tuple(complete(query, known) for query in match[2].split(UNION)))
            body = f"{match[1]}{table}{match[3]}"
        known[part] = body
    yield Fill(name, (complete(known.pop(""), known),))


def complete(select: str, known: Mapping[str, str]) -> str:
    """The query with the named parts that it needs."""
    needed = needs(select, known)
    parts = ", ".join(f"{name} AS ({body})" for name, body in known.items() if name in needed)
    return f"WITH {parts} {select}" if parts else select


def needs(select: str, known: Mapping[str, str]) -> set[str]:
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
