"""An update while a worker fits spectra on another core, against one while that worker is stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from benchmarking import Benchmark, Measurement, Reach, Settings, timed

from gpt2exp import assembly
from gpt2exp.compose import compose
from gpt2exp.config import ModelConfig
from gpt2exp.spectral.slices import slices
from gpt2exp.spectral.snapshots import Header, Queue, stored_names
from gpt2exp.spectral.supervisor import supervised

SNAPSHOTS = 6
"""Of GPT-2's size: half a minute of work each, more than the rounds take."""
START_SECONDS = 8
"""For the worker's imports, which read files and are over before the first round."""


def measure(settings: Settings) -> Measurement:
    """Alternate, update by update, with the worker going on and standing still (SIGCONT, SIGSTOP)."""
    cfg = compose(["hardware.threads=1", "tracking=off"])
    with TemporaryDirectory(prefix="gpt2exp_benchmark_") as folder:
        queue = fill(Path(folder) / "spectra")
        parts = assembly.assemble(cfg, Path(folder))
        window = parts.inputs.windows.window(0)
        steps = iter(range(1, 10_000))

        def update() -> None:
            parts.engine.update(next(steps), window, 1.0)

        with supervised(queue, print) as supervisor:
            supervisor.ensure()
            time.sleep(START_SECONDS)
            assert supervisor.worker is not None
            measurement = alternate_worker(supervisor.worker.pid, update, settings.choose(60, 12))
            done = len(queue.done())
        parts.engine.close()
    note = f"1 thread each; the worker fitted GPT-2-sized snapshots all the time ({done} finished)"
    return Measurement(measurement.ours, measurement.peer, None, (note,))


def fill(folder: Path) -> Queue:
    """A queue of GPT-2-sized snapshots."""
    queue, model = Queue(folder), gpt2()
    random = np.random.default_rng(0)
    shapes = {"c_attn": (2304, 768), "c_fc": (3072, 768), "mlp.c_proj": (768, 3072)}
    names = stored_names(slices(model))
    weights = {
        name: random.standard_normal(next((s for part, s in shapes.items() if part in name), (768, 768)), np.float32)
        for name in names
    }
    for step in range(SNAPSHOTS):
        queue.publish(Header(step, 0, 42, "weightwatcher", False, False, slices(model)), weights)
    return queue


def gpt2() -> ModelConfig:
    """GPT-2's shape."""
    return compose(["model=gpt2", "model.source=reference", "tracking=off"]).model


def alternate_worker(pid: int, update: Callable[[], None], rounds: int) -> Measurement:
    """Times with the worker running and stopped; which comes first alternates."""
    times: dict[int, list[float]] = {signal.SIGCONT: [], signal.SIGSTOP: []}
    update()
    try:
        for number in range(rounds):
            for state in sorted(times, reverse=number % 2 == 0):
                os.kill(pid, state)
                times[state].append(timed(update))
    finally:
        os.kill(pid, signal.SIGCONT)
    return Measurement(times[signal.SIGCONT], times[signal.SIGSTOP])


ROW = Benchmark(
    "an update of the default job while the worker fits spectra, one thread each",
    "the same with the worker stopped",
    Reach(1.02),
    measure,
)
