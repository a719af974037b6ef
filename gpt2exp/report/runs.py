"""A run directory as the report reads it: never changed, never guessed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml

from gpt2exp import rundir
from gpt2exp.errors import StorageError
from gpt2exp.report.censoring import Evaluation

Row = Mapping[str, Any]
PHASES = ("data", "update", "read_back", "evaluate", "wait", "track", "checkpoint")
"""Seconds of `timing.jsonl` that make up a run's time."""


@dataclass(frozen=True)
class Run:
    """One run: its record, its configuration and its rows."""

    path: Path
    record: Mapping[str, Any]
    config: Mapping[str, Any]
    metrics: Sequence[Row]
    evaluations: Sequence[Row]
    tracking: Sequence[Row]
    timing: Sequence[Row]

    @property
    def name(self) -> str:
        """Its directory's name."""
        return self.path.resolve().name

    @property
    def arm(self) -> str:
        """The arm it belongs to."""
        return str(self.record["arm"])

    @property
    def seed(self) -> int:
        """Its initialisation seed."""
        return int(self.record["seed"])

    @property
    def status(self) -> str:
        """As `run.json` says."""
        return str(self.record["status"])

    @property
    def complete(self) -> bool:
        """Full budget and full measurement grid."""
        return self.status == rundir.Status.complete.name

    @property
    def step(self) -> int:
        """The last step that has a row."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def num_steps(self) -> int:
        """The budget."""
        return int(self.record["training"]["schedule"]["num_steps"])

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one update."""
        return int(self.record["training"]["schedule"]["tokens_per_step"])

    @cached_property
    def seconds(self) -> dict[int, float]:
        """Seconds of the kept trajectory up to and including each step: work that was redone counts once."""
        spent: dict[int, float] = {}
        for row in self.timing:
            spent[row["step"]] = spent.get(row["step"], 0.0) + sum(row.get(phase, 0.0) for phase in PHASES)
        steps = sorted(spent)
        return dict(zip(steps, accumulate(spent[step] for step in steps), strict=True))

    @property
    def elapsed(self) -> float | None:
        """Seconds of the whole kept trajectory."""
        return max(self.seconds.values(), default=None)

    def evaluation_records(self) -> list[Evaluation]:
        """Step, tokens, loss and seconds of each evaluation; a loss that was not finite is NaN."""
        return [
            Evaluation(
                row["step"], row["tokens"], _number(row["val_loss"]), self.seconds.get(row["step"], float("nan"))
            )
            for row in self.evaluations
        ]

    def final(self, column: str) -> float | None:
        """A column of the last step's evaluation; None where the run has none there."""
        if not self.evaluations or self.evaluations[-1]["step"] != self.num_steps:
            return None
        return _number(self.evaluations[-1][column])


def read_run(path: Path) -> Run:
    """Read a run directory.

    Raises:
        StorageError: its record or configuration is missing or damaged.
    """
    record = rundir.read_record(path)
    try:
        config = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
        rows = {kind: rundir.read_rows(path, kind) for kind in ("metrics", "evaluations", "tracking", "timing")}
        run = Run(path, record, config, **rows)
        _ = (run.arm, run.seed, run.num_steps, run.status)
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise StorageError(f"{path}: damaged, or of another version: {error}") from None
    return run


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
