"""The tables that a question may be asked of: runs, updates, evaluations, tracking, spectra.

The same tables as the pandas frames of `gpt2exp.report.frames`, with the run's path on every row beside its name, arm
and seed: names repeat between protocols, paths do not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2exp import rundir
from gpt2exp.errors import ConfigError, StorageError
from gpt2exp.identity import canonical, flatten
from gpt2exp.report.runs import PHASES
from gpt2exp.run_store.loading import CSV, JSON_LINES, RowFile, connect, first_line, load, quoted
from gpt2exp.spectral.tables import SPECTRA_COLUMNS

if TYPE_CHECKING:
    import duckdb

TABLES = ("runs", "updates", "evaluations", "tracking", "spectra")
WHOSE = ("run", "arm", "seed", "path")
"""On every row."""
STEP = {"step": "BIGINT", "tokens": "BIGINT"}
ERROR = {"token_error": "DOUBLE", "target_tokens": "BIGINT"}
ROWS = {
    "metrics": {
        **STEP,
        **dict.fromkeys(("loss", "grad_norm", "clip_coef"), "DOUBLE"),
        "gated": "BOOLEAN",
        "qk_max": "DOUBLE[]",
    },
    "evaluations": {**STEP, "val_loss": "DOUBLE", **ERROR},
    "tracking": {**STEP, **ERROR, "source": "VARCHAR", "snapshot_sha256": "VARCHAR"},
    "timing": {"step": "BIGINT", "attempt": "BIGINT", **dict.fromkeys(PHASES, "DOUBLE")},
}
"""Columns by row file that are there even where no run has a row."""
SPECTRA_TEXT = {"spectral_estimator", "estimator_version", "matrix", "kind", "label", "raw_status", "clip_status"}
SPECTRA_COUNTS = {
    *("step", "tokens", "block", "rows", "columns", "num_evals", "matrix_rank", "detX_num", "erg_gap"),
    *(f"{fit}_{name}" for fit in ("raw", "clip") for name in ("tail_size", "num_removed")),
}
SPECTRA = {
    name: "VARCHAR" if name in SPECTRA_TEXT else "BIGINT" if name in SPECTRA_COUNTS else "DOUBLE"
    for name in SPECTRA_COLUMNS
    if name not in WHOSE
}
RUN_TYPES = {"status": "VARCHAR", "reason": "VARCHAR", "attempts": "BIGINT", "inexact": "BOOLEAN"}
COMPUTED = ("step", "seconds", "final_val_loss", "final_token_error")
"""Columns of `runs` that come from the row files."""
TIERS = ("training", "measurement", "execution")


@dataclass(frozen=True)
class Store:
    """An open database, and a line for each run or file that was left out."""

    connection: duckdb.DuckDBPyConnection
    complaints: tuple[str, ...]


def open_store(folders: Iterable[Path]) -> Store:
    """Read every run at or below `folders`.

    Raises:
        ConfigError: there is none.
        StorageError: there are runs, and none can be read; or there is no room for them.
        RefusedError: DuckDB is not installed.
    """
    connection, paths = connect(), found_runs(folders)
    import duckdb

    try:
        return read_store(connection, paths)
    except (duckdb.Error, OSError) as error:
        raise StorageError(f"the runs cannot be read together: {first_line(error)}; name fewer with --runs") from None


def read_store(connection: duckdb.DuckDBPyConnection, paths: Sequence[Path]) -> Store:
    """Fill the tables; what is damaged is left out.

    Raises:
        StorageError: nothing is left.
    """
    records, complaints = read_records(paths)
    with tempfile.TemporaryDirectory(prefix="gpt2exp-query-") as scratch:
        damaged = load_rows(connection, list(records), Path(scratch))
        unreadable = load_spectra(connection, list(records), Path(scratch))
    complaints += [f"{path}: left out, {why}" for path, why in damaged.items()]
    complaints += [f"{path}: its spectra are left out, {why}" for path, why in unreadable.items()]
    kept = {path: record for path, record in records.items() if path not in damaged}
    if not kept:
        raise StorageError("\n".join([*complaints, "none of the runs can be read"]))
    create_tables(connection, kept)
    return Store(connection, tuple(complaints))


def found_runs(folders: Iterable[Path]) -> list[Path]:
    """Run directories below `folders`, each once.

    Raises:
        ConfigError: a folder without any.
    """
    runs: dict[Path, Path] = {}
    for folder in folders:
        found = rundir.find_runs(folder) if folder.is_dir() else []
        if not found:
            raise ConfigError(f"{folder}: no run directory at or below it; name others with --runs FOLDER")
        for run in found:
            runs.setdefault(run.resolve(), run)
    return list(runs.values())


def read_records(paths: Iterable[Path]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Rows of `runs` as far as `run.json` goes, by path; and a line for each that is damaged."""
    rows: dict[str, dict[str, Any]] = {}
    complaints = []
    for path in paths:
        try:
            rows[str(path)] = run_row(path, rundir.read_record(path))
        except StorageError as error:
            complaints.append(f"{path}: left out, {str(error).removeprefix(f'{path}/').removeprefix(f'{path}: ')}")
        except (KeyError, TypeError, ValueError) as error:
            complaints.append(f"{path}: left out, run.json is damaged or of another version ({error!r})")
    return rows, complaints


def run_row(path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that `run.json` holds, flat: `training.optimizer.lr`; lists as JSON text."""
    own = {
        "run": path.resolve().name,
        "arm": str(record["arm"]),
        "seed": int(record["seed"]),
        "path": str(path),
        "status": str(record["status"]),
        "reason": record.get("reason"),
        "attempts": len(record["attempts"]),
        "inexact": bool(record.get("inexact")),
    }
    int(record["training"]["schedule"]["num_steps"])
    tiers = {key: value for tier in TIERS for key, value in flatten(record.get(tier), tier).items()}
    rest = {name: value for name, value in record.items() if name not in (*own, *TIERS, *COMPUTED)}
    columns = {**tiers, **flatten(rest)}
    return {**own, **{key: canonical(v) if isinstance(v, list | dict) else v for key, v in columns.items()}}


def load_rows(connection: duckdb.DuckDBPyConnection, runs: Sequence[str], scratch: Path) -> dict[str, str]:
    """Raw tables `raw_metrics` ...; why a run cannot be read, by path."""
    damaged: dict[str, str] = {}
    for kind, columns in ROWS.items():
        files = [RowFile(run, Path(run).resolve() / f"{kind}.jsonl") for run in runs]
        present = [file for file in files if file.rows.is_file()]
        failures = load(connection, f"raw_{kind}", JSON_LINES, columns, present, scratch)
        damaged |= {path: f"{kind}.jsonl is damaged ({why})" for path, why in failures.items()}
    return damaged


def load_spectra(connection: duckdb.DuckDBPyConnection, runs: Sequence[str], scratch: Path) -> dict[str, str]:
    """Raw table `raw_spectra`; why a run's table cannot be read, by path."""
    files = [RowFile(run, Path(run).resolve() / "spectra.csv") for run in runs]
    present = [file for file in files if file.rows.is_file()]
    failures = load(connection, "raw_spectra", CSV, SPECTRA, present, scratch)
    return {path: f"spectra.csv is damaged; gpt2exp spectra {path} writes it again ({failures[path]})"
            for path in failures}  # fmt: skip


def create_tables(connection: duckdb.DuckDBPyConnection, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """The tables of `TABLES` from the raw ones, which are dropped."""
    create_records(connection, list(runs.values()))
    connection.execute(SECONDS)
    connection.execute(RUNS)
    columns = {table: others(connection, f"raw_{kind}") for table, kind in RAW.items()}
    columns["updates"] = columns["updates"].replace(QK_MAX, QK_MAXIMA)
    columns["evaluations"] += ", until.seconds"
    columns["spectra"] += ", tracked.token_error"
    for table, kind in RAW.items():
        connection.execute(ROW_TABLE.format(table=table, columns=columns[table], kind=kind, join=JOINS.get(table, "")))
    for raw in ("records", "seconds_until", "raw_timing", *(f"raw_{kind}" for kind in RAW.values())):
        connection.execute(f"DROP TABLE {raw}")


def create_records(connection: duckdb.DuckDBPyConnection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Table `records`: the union of all rows' columns, each of the type that holds all of its values."""
    names = grouped(name for row in rows for name in row)
    types = {name: RUN_TYPES.get(name) or sql_type(row.get(name) for row in rows) for name in names}
    declared = ", ".join(f"{quoted(name)} {kind}" for name, kind in types.items())
    connection.execute(f"CREATE TEMP TABLE records ({declared})")
    values = [[as_type(row.get(name), types[name]) for name in names] for row in rows]
    connection.executemany(f"INSERT INTO records VALUES ({', '.join('?' * len(names))})", values)


def grouped(names: Iterable[str]) -> list[str]:
    """Each name once, dotted names of one section beside each other, sections as they first appear."""
    once = list(dict.fromkeys(names))
    sections = list(dict.fromkeys(name.partition(".")[0] for name in once))
    return sorted(once, key=lambda name: sections.index(name.partition(".")[0]))


def sql_type(values: Iterable[Any]) -> str:
    """The narrowest of BOOLEAN, BIGINT, DOUBLE and VARCHAR that holds all values; VARCHAR where all are missing."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int}:
        return "BIGINT"
    return "DOUBLE" if kinds and kinds <= {int, float} else "VARCHAR"


def as_type(value: Any, kind: str) -> Any:
    """A value as a column of `kind` takes it."""
    return canonical(value) if kind == "VARCHAR" and value is not None and not isinstance(value, str) else value


def others(connection: duckdb.DuckDBPyConnection, table: str) -> str:
    """Columns of a raw table that do not say whose row it is."""
    return ", ".join(f"raw.{quoted(name)}" for name in column_names(connection, table) if name not in WHOSE)


def column_names(connection: duckdb.DuckDBPyConnection, table: str) -> list[str]:
    """Names of a table's columns, in order."""
    return [str(row[0]) for row in connection.execute(f"DESCRIBE {table}").fetchall()]


SECONDS = f"""
CREATE TEMP TABLE seconds_until AS
SELECT path, step, sum(sum({" + ".join(f"coalesce({phase}, 0)" for phase in PHASES)}))
                   OVER (PARTITION BY path ORDER BY step) AS seconds
FROM raw_timing
GROUP BY path, step
"""
"""Seconds of the kept trajectory up to and including each step: work that was redone counts once."""

RUNS = """
CREATE TABLE runs AS
SELECT run, arm, seed, records.path, status, reason, coalesce(updates.step, 0) AS step, spent.seconds,
       last.val_loss AS final_val_loss, last.token_error AS final_token_error,
       records.* EXCLUDE (run, arm, seed, path, status, reason)
FROM records
LEFT JOIN (SELECT path, max(step) AS step FROM raw_metrics GROUP BY path) AS updates USING (path)
LEFT JOIN (SELECT path, max(seconds) AS seconds FROM seconds_until GROUP BY path) AS spent USING (path)
LEFT JOIN (SELECT path, step AS num_steps, val_loss, token_error FROM raw_evaluations) AS last
       ON last.path = records.path AND last.num_steps = "training.schedule.num_steps"
ORDER BY records.path
"""

ROW_TABLE = """
CREATE TABLE {table} AS
SELECT runs.run, runs.arm, runs.seed, runs.path, {columns}
FROM raw_{kind} AS raw
JOIN runs ON runs.path = raw.path
{join}
ORDER BY runs.path, raw.step, raw.rowid
"""
RAW = {"updates": "metrics", "evaluations": "evaluations", "tracking": "tracking", "spectra": "spectra"}
"""The file that each table of rows comes from; `spectra` comes after `tracking`, which it looks into."""
JOINS = {
    "evaluations": "LEFT JOIN seconds_until AS until ON until.path = raw.path AND until.step = raw.step",
    "spectra": "LEFT JOIN tracking AS tracked ON tracked.path = raw.path AND tracked.step = raw.step",
}
QK_MAX = 'raw."qk_max"'
QK_MAXIMA = f"list_max({QK_MAX}) AS qk_max, {QK_MAX} AS qk_max_by_layer"
"""The largest over layers, and all."""
