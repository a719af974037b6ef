"""Ask a question of the store: one statement that reads, in a database that can do nothing else."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gpt2exp.errors import ConfigError
from gpt2exp.run_store.loading import first_line
from gpt2exp.run_store.tables import TABLES, column_names

if TYPE_CHECKING:
    import duckdb

LOCKS = ("python_enable_replacements = false", "enable_external_access = false", "lock_configuration = true")
LISTED = f"the views are {', '.join(TABLES)} (DESCRIBE runs lists the columns of one)"


@dataclass(frozen=True)
class Answer:
    """Columns in the order of the statement, and whether each holds numbers; rows of Python values."""

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: Sequence[tuple[Any, ...]]

    def csv(self) -> str:
        r"""A header and the rows: shortest floats that read back the same, NULL as an empty cell, '\n', UTF-8."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([self.columns, *([exact(value) for value in row] for row in self.rows)])
        return file.getvalue()


def lock(connection: duckdb.DuckDBPyConnection) -> None:
    """From here on no statement reads or writes a file, loads an extension or changes a setting."""
    for setting in LOCKS:
        connection.execute(f"SET {setting}")


def ask(connection: duckdb.DuckDBPyConnection, statement: str) -> Answer:
    """Run one statement that reads: SELECT, FROM, WITH, PIVOT, DESCRIBE, SUMMARIZE, SHOW TABLES.

    Raises:
        ConfigError: it writes, there is not exactly one, or DuckDB refuses it; with DuckDB's own words.
    """
    import duckdb

    lock(connection)
    try:
        check_reads(connection, statement)
        done = connection.execute(statement)
        described, rows = done.description, done.fetchall()
    except duckdb.Error as error:
        raise ConfigError(f"{first_line(error)}; {hint(connection, statement)}{LISTED}") from None
    names = tuple(column[0] for column in described)
    return Answer(names, tuple(column[1] == "NUMBER" for column in described), rows)


def check_reads(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    """Refuse what is not one statement that reads.

    PIVOT becomes a CREATE TYPE of its own, whose text is empty, and a SELECT.

    Raises:
        ConfigError: saying which statements there are.
        duckdb.Error: it cannot be parsed.
    """
    statements = connection.extract_statements(statement)
    names = [part.type.name for part in statements]
    typed = [part.type.name for part in statements if part.type.name != "CREATE" or part.query.strip()]
    if typed == ["SELECT"] and names[-1] == "SELECT":
        return
    if not typed:
        raise ConfigError(f"no statement in it; {LISTED}")
    writing = next((name for name in typed if name != "SELECT"), None)
    found = f"{writing} is refused" if writing else f"found {len(typed)} statements, expected one"
    raise ConfigError(f"{found}: query only reads (SELECT, FROM, WITH, PIVOT, DESCRIBE, SUMMARIZE); {LISTED}")


def hint(connection: duckdb.DuckDBPyConnection, statement: str) -> str:
    """A reminder where a dotted column's name stands without its quotes."""
    dotted = {name for table in TABLES for name in column_names(connection, table) if not name.isidentifier()}
    unquoted = re.sub(r'"[^"]*"|\'[^\']*\'', " ", statement)
    bare = [word for word in re.findall(r"[A-Za-z_][\w./]*", unquoted) if word in dotted]
    return f'write "{bare[0]}" with its double quotes; ' if bare else ""


def shown(value: Any) -> str:
    """A cell for reading: seven digits, a dash for NULL."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(shown, value)) + "]"
    return str(exact(value))


def exact(value: Any) -> Any:
    """A cell of a CSV file; lists and structs as JSON."""
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, default=_plain)
    return str(value).lower() if isinstance(value, bool) else value


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else str(value)
