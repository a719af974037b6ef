"""One size on one host, measured in a process of its own: `python -m gpt2exp.sql_reports.bench_child SPECIFICATION`.

Prints one line of JSON: a list of rows, one a step.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from gpt2exp import assembly
from gpt2exp.compose import compose
from gpt2exp.config import Config
from gpt2exp.data.windows import Window
from gpt2exp.engines.base import Array, Engine, EngineState
from gpt2exp.engines.sql.replay import CAPTURED_AT
from gpt2exp.errors import Gpt2ExpError
from gpt2exp.main import report
from gpt2exp.sql_reports.plans import PlanSize, counted

MEGABYTE = 1e6


@dataclass(frozen=True)
class Specification:
    """What to measure: `batch` rows of `context` tokens a step, a model of `layers` blocks, otherwise nanogpt_mini."""

    host: str
    optimizer: tuple[str, ...]
    batch: int
    context: int
    layers: int
    steps: int
    reps: int

    def config(self, *overrides: str) -> Config:
        """The training run, as far as it matters.

        Raises:
            ConfigError: the optimizer's overrides do not fit.
        """
        tokens = self.batch * self.context
        return compose([
            "model=nanogpt_mini", f"model.n_layer={self.layers}", f"model.block_size={self.context}", *self.optimizer,
            "schedule=constant", f"schedule.num_steps={self.steps}", f"schedule.tokens_per_step={tokens}",
            f"schedule.context_length={self.context}", "data=synthetic", "data.val_tokens=1025",
            f"data.train_tokens={(self.steps + 1) * tokens + 1}", "evaluation=off", "tracking=off",
            "checkpoint.keep=0", "sample.tokens=0", "logging.log_every=1000000",
            f"hardware.micro_batch_size={self.batch}", *overrides,
        ])  # fmt: skip

    def build(self, replay: bool = True) -> Engine:
        """The engine at its initial weights."""
        replays = f"hardware.replay={str(replay).lower()}"
        return assembly.sql_engine(self.config(f"hardware={self.host}", replays), None, self.batch)

    def reference(self) -> Engine:
        """torch in float64."""
        overrides = ("hardware=cpu", "precision=fp64", "hardware.threads=1", "hardware.orthogonalizer=ns")
        return assembly.torch_engine(self.config(*overrides), None, self.batch)

    def windows(self) -> list[Window]:
        """Another batch for every step."""
        windows = assembly.resolve(self.config(f"hardware={self.host}")).windows
        return [windows.window(step) for step in range(self.steps)]


def main() -> int:
    """Measure and print."""
    given = json.loads(sys.argv[1])
    try:
        rows = measure(Specification(**{**given, "optimizer": tuple(given["optimizer"])}))
    except Gpt2ExpError as error:
        return report(error)
    print(json.dumps(rows))
    return 0


def measure(spec: Specification) -> list[dict[str, Any]]:
    """Rows by step. Memory is taken first, before anything else made the process larger."""
    windows = spec.windows()
    engine = spec.build()
    before = psutil.Process().memory_info().rss
    losses, states = trained(engine, windows)
    memory = (peak_bytes() - before) / MEGABYTE
    engine.close()
    expected_losses, expected = trained(spec.reference(), windows)
    size = plan_size(spec, windows[0])
    rows = []
    for step, (replayed, rewritten) in enumerate(times(spec, windows), start=1):
        i = step - 1
        error = max(state_error(states[i], expected[i]), abs(losses[i] / expected_losses[i] - 1))
        rows.append(
            {
                "step": step,
                "run": "replayed" if step > CAPTURED_AT else "rewritten",
                "milliseconds": 1e3 * replayed,
                "rewritten_milliseconds": 1e3 * rewritten,
                "operators": size.operators,
                "largest_rows": size.largest_rows,
                "memory_mb": memory,
                "loss": losses[i],
                "largest_relative_error": error,
            }
        )
    return rows


def trained(engine: Engine, windows: Sequence[Window]) -> tuple[list[float], list[EngineState]]:
    """Loss of each update, and the state after it."""
    states = []
    for step, window in enumerate(windows, start=1):
        engine.update(step, window, 1.0)
        states.append(engine.state())
    return [record.loss for record in engine.drain()], states


def times(spec: Specification, windows: Sequence[Window]) -> Iterator[tuple[float, float]]:
    """Median seconds of each step: with captured plans replayed, and rewritten every time, side by side."""
    seconds: list[list[tuple[float, float]]] = [[] for _ in windows]
    for _ in range(spec.reps):
        engines = spec.build(True), spec.build(False)
        for step, window in enumerate(windows, start=1):
            replayed, rewritten = (timed(engine, step, window) for engine in engines)
            seconds[step - 1].append((replayed, rewritten))
        for engine in engines:
            engine.close()
    for pairs in seconds:
        replayed_reps, rewritten_reps = zip(*pairs, strict=True)
        yield statistics.median(replayed_reps), statistics.median(rewritten_reps)


def timed(engine: Engine, step: int, window: Window) -> float:
    """Seconds of one update."""
    started = time.perf_counter()
    engine.update(step, window, 1.0)
    return time.perf_counter() - started


def plan_size(spec: Specification, window: Window) -> PlanSize:
    """Of the program of gradients, one micro-batch."""
    engine: Any = spec.build(False)
    sizes = counted(engine.host).sizes
    engine.gradients(window)
    engine.close()
    return sum(sizes, PlanSize())


def state_error(found: EngineState, expected: EngineState) -> float:
    """Largest difference of a tensor of weights or slots as a share of its largest value."""
    return max(map(largest_error, (found.weights, found.slots), (expected.weights, expected.slots)))


def largest_error(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest over tensors; NaN if one holds any."""
    assert found.keys() == expected.keys()
    errors = [relative_error(found[name], expected[name]) for name in found]
    return float(np.max(errors, initial=0.0))


def relative_error(found: Array, expected: Array) -> float:
    """0 where both are 0 everywhere."""
    difference, largest = np.max(np.abs(found - expected)), np.max(np.abs(expected))
    return 0.0 if difference == 0 else float(difference / largest)


def peak_bytes() -> int:
    """The most memory that this process ever held."""
    status = Path("/proc/self/status")
    if status.exists():
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.exit(main())
