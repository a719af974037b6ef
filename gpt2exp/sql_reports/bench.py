"""The training step in SQL: sizes that grow in one direction at a time, each measured in a fresh process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt2exp.verification.child import ending, last_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gpt2exp.sql_reports.bench_child import Specification

COLUMNS = (
    *("host", "optimizer", "batch", "context", "layers", "step", "run", "milliseconds", "rewritten_milliseconds"),
    *("ratio", "operators", "largest_rows", "memory_mb", "loss", "largest_relative_error", "note"),
)
DIRECTIONS = {"batch": "Rows of a batch", "context": "Context (tokens)", "layers": "Layers"}
COLORS = {"duckdb": "#0072B2", "datafusion": "#D55E00"}
LINES = {"milliseconds": ("-", "replayed"), "rewritten_milliseconds": ("--", "rewritten")}

Row = dict[str, Any]


class Size(NamedTuple):
    """Rows of a batch, tokens of a row, blocks of the model."""

    batch: int = 4
    context: int = 16
    layers: int = 1

    def __str__(self) -> str:
        return "x".join(map(str, self))


SIZES = (
    Size(),
    *(Size(batch=batch) for batch in (1, 16, 64)),
    *(Size(context=context) for context in (32, 64)),
    *(Size(layers=layers) for layers in (2, 3)),
)
"""nanogpt_mini, then more of one direction each."""


def measure(specifications: Iterable[Specification]) -> Iterator[list[Row]]:
    """Rows of each specification, a row a step; one that fails is a row that says why, and the rest goes on."""
    for spec in specifications:
        names = {"host": spec.host, "optimizer": " ".join(spec.optimizer), "batch": spec.batch}
        names |= {"context": spec.context, "layers": spec.layers}
        yield [with_ratio({**names, **row}) for row in child_rows(spec)]


def child_rows(spec: Specification) -> list[Row]:
    """What a process of its own measured, or one row with a note."""
    command = [sys.executable, "-m", "gpt2exp.sql_reports.bench_child", json.dumps(asdict(spec))]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = last_lines(done.stderr).splitlines()[-1].removeprefix("gpt2exp: ")
        return [{"note": f"skip: {ending(done.returncode)}: {said}"}]
    rows: list[Row] = json.loads(done.stdout.splitlines()[-1])
    return rows


def with_ratio(row: Row) -> Row:
    """All columns; `ratio` is how many times faster a replayed step is than a rewritten one."""
    if row.get("run") == "replayed":
        row["ratio"] = row["rewritten_milliseconds"] / row["milliseconds"]
    return {name: row.get(name, "" if name == "note" else None) for name in COLUMNS}


def summary(rows: Sequence[Row]) -> Row:
    """One row of a host and size: medians over the replayed steps, the largest error of all steps."""
    replayed = [row for row in rows if row["run"] == "replayed"]
    shared = {name: rows[0][name] for name in ("host", "batch", "context", "layers")}
    if not replayed:
        return {**shared, **dict.fromkeys(SUMMARY), "note": rows[0]["note"] or "no step was replayed"}
    medians = {name: statistics.median(row[name] for row in replayed) for name in SUMMARY[:3]}
    errors = [row["largest_relative_error"] for row in rows]
    worst = max(errors, key=lambda error: (error != error, error))
    last = {name: rows[-1][name] for name in ("operators", "largest_rows", "memory_mb", "loss")}
    return {**shared, **medians, **last, "largest_relative_error": worst, "note": ""}


SUMMARY = (
    *("milliseconds", "rewritten_milliseconds", "ratio"),
    *("operators", "largest_rows", "memory_mb", "loss", "largest_relative_error"),
)


def figure(summaries: Sequence[Row]) -> Figure:
    """Time of a step by batch, context and layers: replayed drawn through, rewritten dashed."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(12, 4.6), layout="constrained")
    drawn.suptitle("Time of a training step in SQL, nanogpt_mini (float64, one thread)")
    axes = drawn.subplots(1, len(DIRECTIONS), sharey=True, squeeze=False)
    for axis, (direction, label) in zip(axes.flat, DIRECTIONS.items(), strict=True):
        for host, color in COLORS.items():
            rows = along(summaries, host, direction)
            for column, (style, text) in LINES.items():
                x, y = [row[direction] for row in rows], [row[column] for row in rows]
                axis.plot(x, y, style, color=color, marker="o", ms=4, label=f"{host}, {text}")
        axis.set_xlabel(label)
        axis.set_xticks(sorted({row[direction] for host in COLORS for row in along(summaries, host, direction)}))
        axis.set_xlim(left=0)
    axes.flat[0].set_ylim(bottom=0)
    axes.flat[0].set_ylabel("Milliseconds (median)")
    axes.flat[0].legend(loc="best", framealpha=0.9)
    return drawn


def along(summaries: Sequence[Row], host: str, direction: str) -> list[Row]:
    """Rows of a host that differ from nanogpt_mini's own size in one direction at most, in its order."""
    usual = Size()._asdict()
    others = [name for name in usual if name != direction]
    rows = [row for row in summaries if row["host"] == host and row["milliseconds"] is not None]
    return sorted(
        (row for row in rows if all(row[name] == usual[name] for name in others)), key=lambda row: row[direction]
    )
