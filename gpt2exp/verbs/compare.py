"""compare A B: two runs side by side at equal steps, tokens and wall time.

Usage: gpt2exp compare A B

A and B are run directories; either may be a main.log of llm.c. Rows are evaluations that both have, at about a
quarter, a half and three quarters of the way to the last one, and there. Where they share none, and at equal wall
time, the curves are interpolated linearly between two evaluations, and the row is marked with ~. What differs
in identity is said by tier. Nothing is pooled, and two runs carry no statistic: see gpt2exp report for protocols.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from gpt2exp import rundir
from gpt2exp.errors import ConfigError, StorageError
from gpt2exp.identity import differing
from gpt2exp.report import curves
from gpt2exp.report.curves import Series
from gpt2exp.report.runs import Run, read_run
from gpt2exp.verbs.status import PIPE_WIDTH, status_text
from gpt2exp.verbs_help import positional

AXES = {"step": "steps", "tokens": "tokens", "seconds": "wall time"}
TIERS = ("training", "measurement", "execution")
QUARTERS = (0.25, 0.5, 0.75, 1.0)
NOTHING = Series((), (), (), ())


@dataclass(frozen=True)
class Side:
    """One of the two: its validation loss and its token error; `run` is None for a log."""

    path: Path
    about: str
    loss: Series
    error: Series
    run: Run | None = None


class Places(NamedTuple):
    """Positions at which the two are set side by side, and whether they lie between evaluations."""

    at: list[float]
    interpolated: bool


def main(arguments: list[str]) -> int:
    """Print what the two are, what differs, and a table for each axis."""
    a, b = (read_side(Path(argument)) for argument in positional(arguments, __doc__, at_least=2, at_most=2))
    print(f"A  {a.about}\nB  {b.about}")
    for line in identity_lines(a, b):
        print(line)
    print("Two runs side by side: nothing is pooled, and how much of a difference is chance they cannot tell.")
    for axis, name in AXES.items():
        print(f"\n{axis_text(a, b, axis, name)}", end="")
    return 0


def read_side(path: Path) -> Side:
    """A run directory, or a log of llm.c.

    Raises:
        ConfigError: neither, or without an evaluation.
        DataError: a log that cannot be read.
        StorageError: a damaged run.
    """
    side = side_of_run(path) if rundir.is_run(path) else side_of_log(path)
    if not len(side.loss):
        raise ConfigError(f"{path}: no evaluation in it (evaluation=off, or it stopped before the first)")
    return side


def side_of_run(path: Path) -> Side:
    """What a run recorded."""
    run = read_run(path)
    missing = [tier for tier in TIERS if tier not in run.record]
    if missing:
        raise StorageError(f"{path}: run.json has no {missing[0]}: damaged, or of another version")
    status = status_text(path, dict(run.record))
    about = f"{path}: {run.arm}, seed {run.seed}, {status}, step {run.step} of {run.num_steps}"
    return Side(path, about, curves.val_loss(run), curves.token_error(run), run)


def side_of_log(path: Path) -> Side:
    """What a log of llm.c holds."""
    if not path.is_file():
        below = rundir.find_runs(path) if path.is_dir() else []
        hint = f"; runs lie below it, for example {below[0]}" if below else ""
        raise ConfigError(f"{path}: neither a run directory nor a main.log of llm.c{hint}")
    log = curves.read_llmc_log(path)
    return Side(path, f"{path}: {log.label}; {' '.join(log.notes)}", curves.foreign_series(log), NOTHING)


def identity_lines(a: Side, b: Side) -> Iterator[str]:
    """A line a tier: the same, or what differs."""
    if a.run is None or b.run is None:
        yield "A log of llm.c records no identity: whether model, data and schedule agree is not known."
        return
    found = {tier: differing(a.run.record[tier], b.run.record[tier]) for tier in TIERS}
    for tier, rows in found.items():
        yield f"{tier} differs: {summary(rows)}" if rows else f"{tier} is the same"
    if any(found.values()):
        yield f"gpt2exp diff {a.path} {b.path} lists every key"


def summary(found: Sequence[tuple[str, Any, Any]]) -> str:
    """Differing keys by section: a lone one with its values, several as their number."""
    sections: dict[str, list[str]] = {}
    for key, left, right in found:
        sections.setdefault(key.partition(".")[0], []).append(f"{key} {left} -> {right}")
    return ", ".join(texts[0] if len(texts) == 1 else f"{name} ({len(texts)} keys)" for name, texts in sections.items())


def axis_text(a: Side, b: Side, axis: str, name: str) -> str:
    """The table at equal positions along an axis, or why there is none."""
    places = places_of(a.loss, b.loss, axis)
    if not places.at:
        lacking = [side.path for side in (a, b) if not side.loss.along(axis)]
        reason = f"{lacking[0]} records none" if lacking else "the two have no span of it in common"
        return f"At equal {name}: nothing to show, {reason}\n"
    columns = (name, "val loss A", "val loss B", "A - B", "token error A", "token error B", "A - B")
    table = Table(*columns, box=None, pad_edge=False)
    for position in places.at:
        table.add_row(*cells(a, b, axis, position, places.interpolated))
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    with console.capture() as printed:
        console.print(table)
    lines = [line.rstrip() for line in printed.get().splitlines()]
    return "\n".join([f"At equal {name}{' (~ interpolated)' if places.interpolated else ''}", *lines, ""])


def places_of(a: Series, b: Series, axis: str) -> Places:
    """Evaluations that both have near each quarter of the way to the last, else the quarters themselves."""
    common = [x for x in curves.shared([a, b], axis) if x > 0] if axis != "seconds" else []
    if common:
        nearest = (min(common, key=lambda x: abs(x - share * common[-1])) for share in QUARTERS)
        return Places(sorted(set(nearest)), False)
    spans = [[x for x, _ in one.along(axis)] for one in (a, b)]
    if not all(spans):
        return Places([], True)
    first, last = max(span[0] for span in spans), min(span[-1] for span in spans)
    quarters = [share * last if axis == "seconds" else float(round(share * last)) for share in QUARTERS]
    return Places([x for x in dict.fromkeys(quarters) if x >= first and x > 0], True)


def cells(a: Side, b: Side, axis: str, position: float, interpolated: bool) -> list[str]:
    """One row: position, losses, token errors, each with the difference."""
    where = f"{position:,.{0 if position >= 100 else 2}f} s" if axis == "seconds" else f"{position:,.0f}"
    losses = [side.loss.at(axis, position) for side in (a, b)]
    errors = [
        side.error.at(axis, position) if interpolated or side.error.has(axis, position) else math.nan for side in (a, b)
    ]
    return [f"~ {where}" if interpolated else where, *three(losses), *three(errors)]


def three(values: Sequence[float]) -> list[str]:
    """Two values and their difference; a dash for what is missing or not finite."""
    a, b = values
    return [*(f"{value:.4f}" if math.isfinite(value) else "-" for value in (a, b)), signed(a - b)]


def signed(value: float) -> str:
    """Four decimals with their sign, or a dash."""
    return f"{value:+.4f}" if math.isfinite(value) else "-"
