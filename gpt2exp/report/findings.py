"""Everything a report says, as data: what was asked for, what is there, whether it is comparable, what it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from gpt2exp.config import Design
from gpt2exp.report.censoring import Crossing, ReachComparison, ReachSummary
from gpt2exp.report.judgement import Judgement
from gpt2exp.report.runs import Run
from gpt2exp.report.statistics import ArmSummary, Comparison


class Kind(Enum):
    """What a report is about."""

    protocol = "protocol"
    """The runs of one planned protocol."""
    runs = "runs"
    """Runs that no plan joins: shown side by side, never pooled."""
    run = "run"
    """One run."""


@dataclass(frozen=True)
class Requested:
    """One run that was asked for, and what became of it; `status` is `absent` where there is none."""

    folder: str
    arm: str
    seed: int
    status: str
    step: int
    num_steps: int | None
    reason: str = ""

    @property
    def complete(self) -> bool:
        """Full budget and full measurement grid."""
        return self.status == "complete"


@dataclass(frozen=True)
class PairCheck:
    """Whether the runs of one seed may be subtracted; `problems` name each key that differs, with both values."""

    seed: int
    arms: tuple[str, ...]
    initial_weights: str | None
    order: str | None
    problems: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Same initial weights, same data order, same execution."""
        return not self.problems


@dataclass(frozen=True)
class Difference:
    """A key that keeps runs from being pooled: the tier it is in, and the runs by value."""

    tier: str
    key: str
    values: Mapping[str, tuple[str, ...]]
    """Value as text -> names of the runs that have it."""


@dataclass(frozen=True)
class EndpointFinding:
    """One endpoint: every arm's summary, and the paired comparisons of the first arm with each other one."""

    name: str
    unit: str
    primary: bool
    arms: tuple[ArmSummary, ...]
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True)
class ReachFinding:
    """Steps, tokens or seconds to the target, as censored data."""

    axis: str
    target: float
    crossings: Mapping[tuple[str, int], Crossing]
    """(arm, seed) -> where the target was reached, if it was."""
    arms: tuple[ReachSummary, ...]
    comparisons: tuple[ReachComparison, ...]


@dataclass(frozen=True)
class Findings:
    """What a report shows.

    `warnings` stand at its top (incomplete, pooled by override, resumed inexactly, gated updates). Without
    `comparable` there are no statistics between arms: `endpoints` then hold each arm's values only.
    """

    kind: Kind
    title: str
    folder: Path
    runs: tuple[Run, ...]
    plan: Mapping[str, Any] | None = None
    requested: tuple[Requested, ...] = ()
    warnings: tuple[str, ...] = ()
    pairs: tuple[PairCheck, ...] = ()
    differences: tuple[Difference, ...] = ()
    comparable: bool = False
    endpoints: tuple[EndpointFinding, ...] = ()
    judgement: Judgement | None = None
    reaching: tuple[ReachFinding, ...] = ()
    confounds: tuple[str, ...] = ()
    foreign: tuple[Foreign, ...] = ()

    @property
    def arms(self) -> tuple[str, ...]:
        """Arms in the plan's order, else as they appear."""
        declared = (self.plan or {}).get("declared", {}).get("arms", ())
        return tuple(dict.fromkeys([*declared, *(run.arm for run in self.runs)]))

    @property
    def design(self) -> Design | None:
        """How the plan's runs belong together; None without a plan."""
        return Design[self.plan["declared"]["design"]] if self.plan is not None else None

    @property
    def complete(self) -> bool:
        """Whether every requested run is complete."""
        return bool(self.requested) and all(run.complete for run in self.requested)


@dataclass(frozen=True)
class Foreign:
    """A curve that is not a run of ours (an llm.c log, a published curve): shown under its own label, never pooled."""

    label: str
    source: str
    optimizer: str
    points: tuple[CurvePoint, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)


@dataclass(frozen=True)
class CurvePoint:
    """One evaluation of a foreign curve."""

    step: int
    tokens: int
    val_loss: float
    seconds: float | None = None
