"""A statement: a query whose rows become a table, and the few words that every query is written with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True)
class Statement:
    """`name` is the table that the rows of `sql` become; `comment` says what they are."""

    name: str
    comment: str
    sql: str


def statement(name: str, comment: str, sql: str, joined: str = "") -> Statement:
    """A statement from an indented text and more lines of it; empty ones, left by absent parts, are dropped."""
    lines = [line for line in (*dedent(sql).splitlines(), *joined.splitlines()) if line.strip()]
    return Statement(name, comment, "\n".join(lines))


def double(value: float) -> str:
    """A DOUBLE literal with all its bits: without an exponent DuckDB reads a DECIMAL."""
    text = repr(float(value))
    return text if "e" in text else f"{text}e0"


def columns(alias: str, names: Iterable[str]) -> str:
    """`a.x, a.y`."""
    return ", ".join(f"{alias}.{name}" for name in names)


def equal(left: str, right: str, names: Iterable[str]) -> str:
    """`a.x = b.x AND a.y = b.y`."""
    return " AND ".join(f"{left}.{name} = {right}.{name}" for name in names)


def with_tables(statements: Sequence[Statement], select: str) -> str:
    """One query: every statement a common table expression, then `select`."""
    parts = ",\n".join(f"{s.name} AS (\n{indented(s.sql)}\n)" for s in statements)
    return f"WITH {parts}\n{select}" if parts else select


def indented(text: str) -> str:
    """Two spaces before each line."""
    return "\n".join(f"  {line}" for line in text.splitlines())
