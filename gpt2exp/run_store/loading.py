"""DuckDB reads the row files of many runs into raw tables; a file that it cannot read is named, not guessed at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2exp.errors import RefusedError

if TYPE_CHECKING:
    import duckdb

JSON_LINES = (
    "read_json(?, format='newline_delimited', records=true, union_by_name=true, filename=true, sample_size=-1,"
    " maximum_sample_files=1000000, field_appearance_threshold=0, map_inference_threshold=-1)"
)
"""Types come from all rows of all files: a column may appear late, or in one run only."""
CSV = "read_csv(?, header=true, all_varchar=true, union_by_name=true, filename=true)"
GLOB = str.maketrans({letter: f"[{letter}]" for letter in "*?["})


@dataclass(frozen=True)
class RowFile:
    """A row file of a run. `path` names the run; `rows` is what DuckDB reads: the file or a copy of its whole lines."""

    path: str
    rows: Path


def connect() -> duckdb.DuckDBPyConnection:
    """An in-memory database that fetches no extension and spills nothing into the working directory.

    Raises:
        RefusedError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise RefusedError("DuckDB is not installed; pip install 'gpt2exp[sql]'") from None
    connection = duckdb.connect(
        config={"autoinstall_known_extensions": False, "autoload_known_extensions": False, "temp_directory": ""}
    )
    connection.execute("SET enable_progress_bar = false")
    return connection


def load(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    reader: str,
    columns: Mapping[str, str],
    files: Iterable[RowFile],
    scratch: Path,
) -> dict[str, str]:
    """Fill `table` with the rows of `files` and a column `filename`.

    A last line that no newline ends, as a run under way or killed leaves it, is left out. Where the files cannot be
    read together, each is tried alone, and those that fail are left out.

    Args:
        connection: the database.
        table: its name, created.
        reader: `JSON_LINES` or `CSV`.
        columns: columns that must be there whatever the files hold, with their types.
        files: what to read; empty ones may be among them.
        scratch: a folder for copies.

    Returns:
        Why a file was left out, by the run's path.
    """
    import duckdb

    files, failures = _whole(files, scratch / f"{table}_1_")
    try:
        _create(connection, table, reader, columns, files)
        return failures
    except duckdb.Error:
        files, vanished = _whole(files, scratch / f"{table}_2_")
    failures |= vanished
    failures |= {file.path: why for file in files if (why := _failure(connection, table, reader, columns, file))}
    _create(connection, table, reader, columns, [file for file in files if file.path not in failures])
    return failures


def whole_lines(file: RowFile, copy: Path) -> RowFile:
    """The file itself if a newline ends it, else a copy of the lines that are whole."""
    with file.rows.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - 1))
        if opened.read() in (b"", b"\n"):
            return file
        opened.seek(0)
        complete, newline, _ = opened.read().rpartition(b"\n")
    copy.write_bytes(complete + newline)
    return RowFile(file.path, copy)


def _whole(files: Iterable[RowFile], copies: Path) -> tuple[list[RowFile], dict[str, str]]:
    """Files that have a whole line, and why others cannot be opened. Copies are named `copies` and a number."""
    opened: list[RowFile] = []
    failures: dict[str, str] = {}
    for number, file in enumerate(files):
        try:
            whole = whole_lines(file, copies.with_name(f"{copies.name}{number}"))
        except OSError as error:
            failures[file.path] = str(error.strerror)
            continue
        if whole.rows.stat().st_size:
            opened.append(whole)
    return opened, failures


def join_sources(connection: duckdb.DuckDBPyConnection, table: str, files: Sequence[RowFile]) -> None:
    """A table (filename, path) that says which run a file belongs to."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {table} (filename VARCHAR, path VARCHAR)")
    if files:
        connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", [(str(f.rows), f.path) for f in files])


def quoted(name: str) -> str:
    """A column's name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _create(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    reader: str,
    columns: Mapping[str, str],
    files: Sequence[RowFile],
) -> None:
    if files:
        patterns = [str(file.rows).translate(GLOB) for file in files]
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {table}_read AS SELECT * FROM {reader}", [patterns])
    else:
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {table}_read (filename VARCHAR)")
    found = {row[0]: row[1] for row in connection.execute(f"DESCRIBE {table}_read").fetchall()}
    for name, kind in columns.items():
        if name not in found:
            connection.execute(f"ALTER TABLE {table}_read ADD COLUMN {quoted(name)} {kind}")
        elif found[name] != kind:
            connection.execute(f"ALTER TABLE {table}_read ALTER COLUMN {quoted(name)} TYPE {kind}")
    join_sources(connection, f"{table}_sources", files)
    ordered = ", ".join(map(quoted, columns))
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT path, {ordered}, read.* EXCLUDE (filename, {ordered})"
        f" FROM {table}_read AS read JOIN {table}_sources USING (filename) ORDER BY read.rowid"
    )
    connection.execute(f"DROP TABLE {table}_read; DROP TABLE {table}_sources")


def _failure(
    connection: duckdb.DuckDBPyConnection, table: str, reader: str, columns: Mapping[str, str], file: RowFile
) -> str | None:
    """Why a file cannot be read, or None."""
    import duckdb

    try:
        _create(connection, table, reader, columns, [file] if file.rows.stat().st_size else [])
    except duckdb.Error as error:
        return first_line(error)
    return None


def first_line(error: Exception) -> str:
    """DuckDB's message on one line, without the excerpt of the statement."""
    return " ".join(str(error).partition("\nLINE ")[0].split())
