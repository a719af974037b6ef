"""What a benchmark row is, and how two ways of doing the same work are timed against each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

COLUMNS = "{:<{width}}  {:>10}  {:>10}  {:<27}  {:<14}  {}"
HEAD = ("name", "ours", "peer", "ratio (spread over rounds)", "reach", "holds")


@dataclass(frozen=True)
class Settings:
    """How thorough to be, and the threads that both sides use."""

    quick: bool
    threads: int

    def choose(self, thorough: int, quick: int) -> int:
        """A size or a number of rounds."""
        return quick if self.quick else thorough


@dataclass(frozen=True)
class Reach:
    """The ratio to reach: ours / peer at most `value`, or with `speed_up` peer / ours at least `value`."""

    value: float
    speed_up: bool = False

    def ratio(self, ours: float, peer: float) -> float:
        """The ratio of two times."""
        return peer / ours if self.speed_up else ours / peer

    def met(self, ratio: float) -> bool:
        """Whether `ratio` is good enough."""
        return ratio >= self.value if self.speed_up else ratio <= self.value

    def __str__(self) -> str:
        return f">= {self.value:g}x faster" if self.speed_up else f"<= {self.value:g}x"


@dataclass(frozen=True)
class Measurement:
    """Seconds of ours and of the peer, one of each a round, taken in turn.

    `same` says whether both computed the same (None: nothing to compare); `notes` are printed below the row.
    """

    ours: Sequence[float]
    peer: Sequence[float]
    same: bool | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Benchmark:
    """One row: what is timed against what. Its name is its file's."""

    what: str
    peer: str
    reach: Reach
    measure: Callable[[Settings], Measurement]


@dataclass(frozen=True)
class Result:
    """A measured row. The ratio is the median over rounds of each round's own ratio."""

    name: str
    benchmark: Benchmark
    measurement: Measurement

    @property
    def ratios(self) -> list[float]:
        """Ratio of each round, ascending."""
        rounds = zip(self.measurement.ours, self.measurement.peer, strict=True)
        return sorted(self.benchmark.reach.ratio(ours, peer) for ours, peer in rounds)

    @property
    def ratio(self) -> float:
        """Median of `ratios`."""
        return median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """Smallest and largest ratio, without the outer twentieth of the rounds at each end."""
        outer = len(self.ratios) // 20
        return self.ratios[outer], self.ratios[-1 - outer]

    @property
    def holds(self) -> bool:
        """The reach is met, and by the same results."""
        return self.benchmark.reach.met(self.ratio) and self.measurement.same is not False

    def line(self, width: int) -> str:
        """The printed row: name, ours, peer, ratio (spread over rounds), reach, holds."""
        ours, peer = (seconds(median(times)) for times in (self.measurement.ours, self.measurement.peer))
        low, high = self.spread
        ratio = f"{self.ratio:.3f} ({low:.3f}-{high:.3f}, n={len(self.ratios)})"
        holds = "yes" if self.holds else "no"
        return COLUMNS.format(self.name, ours, peer, ratio, str(self.benchmark.reach), holds, width=width)

    def record(self) -> dict[str, Any]:
        """The row for a JSON file."""
        return {
            "name": self.name,
            "what": self.benchmark.what,
            "peer": self.benchmark.peer,
            "ours_seconds": list(self.measurement.ours),
            "peer_seconds": list(self.measurement.peer),
            "ratio": self.ratio,
            "spread": self.spread,
            "reach": str(self.benchmark.reach),
            "same": self.measurement.same,
            "holds": self.holds,
            "notes": list(self.measurement.notes),
        }


def alternate(ours: Callable[[], object], peer: Callable[[], object], rounds: int) -> Measurement:
    """Time both in turn, ours first in one round and the peer first in the next; one round to warm up."""
    ours()
    peer()
    times: dict[Callable[[], object], list[float]] = {ours: [], peer: []}
    for number in range(rounds):
        for side in (ours, peer) if number % 2 == 0 else (peer, ours):
            times[side].append(timed(side))
    return Measurement(times[ours], times[peer])


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def seconds(value: float) -> str:
    """A duration with a fitting unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value / 1e-6:.4g} us"
