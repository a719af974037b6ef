"""Training batches from shards: our windows against upstream's DistributedDataLoader."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from benchmarking import Benchmark, Measurement, Reach, Settings, seconds, timed

from gpt2exp.config import Order, Precision
from gpt2exp.data.shards import open_shards, stream_of, write_shard
from gpt2exp.data.synthetic import synthetic_tokens
from gpt2exp.data.windows import TrainingWindows
from gpt2exp.engines.torch.backends.local import LocalBackend
from gpt2exp.models.upstream import load, locate

VOCAB_SIZE = 50_257
ROWS, CONTEXT = 64, 1_024
MICRO_TOKENS = ROWS * CONTEXT
STEP_TOKENS = 8 * MICRO_TOKENS
SHARDS = 2
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Walk:
    """Each way at the start of the shards, ready to hand out one step's micro-batches after the other."""

    pattern: str
    upstream: Any

    def ours(self, order: Order, window_tokens: int | None) -> Callable[[], list[Batch]]:
        """Windows of whole steps, cut into micro-batches as the engine does."""
        stream = stream_of(open_shards(self.pattern, VOCAB_SIZE))
        windows = TrainingWindows(stream, order, STEP_TOKENS, CONTEXT, window_tokens)
        backend, numbers = LocalBackend(Precision.fp32, None), count()

        def step() -> list[Batch]:
            window = windows.window(next(numbers))
            inputs_NT, targets_NT = backend.shard(window.inputs_NT), backend.shard(window.targets_NT)
            return list(zip(inputs_NT.split(ROWS), targets_NT.split(ROWS), strict=True))

        return step

    def peer(self) -> Callable[[], list[Batch]]:
        """Eight calls of upstream's `next_batch`."""
        with contextlib.redirect_stdout(io.StringIO()):
            loader = self.upstream.DistributedDataLoader(self.pattern, ROWS, CONTEXT, 0, 1)
        return lambda: [loader.next_batch() for _ in range(STEP_TOKENS // MICRO_TOKENS)]

    def ways(self) -> tuple[Callable[[], list[Batch]], ...]:
        """Our default order, upstream's order as we read it, upstream itself."""
        return (
            self.ours(Order.exact_sequential, None),
            self.ours(Order.upstream_python, MICRO_TOKENS),
            self.peer(),
        )


def measure(settings: Settings) -> Measurement:
    """Walk all shards several times; a step's time is compared with the same step's time."""
    torch.set_num_threads(settings.threads)
    upstream = load(locate(None))
    with TemporaryDirectory(prefix="gpt2exp_benchmark_") as folder:
        steps = write_shards(Path(folder), settings)
        walk = Walk(f"{folder}/tokens_train_*.bin", upstream)
        same = compare(walk, steps)
        walks = [list(time_steps(walk, steps)) for _ in range(settings.choose(5, 3))]
    times = [[median(w[i][way] for w in walks) for i in range(steps)] for way in range(3)]
    return Measurement(times[0], times[2], same, notes(*times))


def write_shards(folder: Path, settings: Settings) -> int:
    """Write the shards, each of whole steps and one token; the number of steps in all."""
    steps_each = settings.choose(190, 19)
    for number in range(SHARDS):
        tokens = synthetic_tokens(number + 1, steps_each * STEP_TOKENS + 1, VOCAB_SIZE)
        write_shard(folder / f"tokens_train_{number + 1:06}.bin", tokens)
    return SHARDS * steps_each


def compare(walk: Walk, steps: int) -> bool:
    """Whether upstream's order has upstream's tokens everywhere, the default order up to the first border.

    From there on the default order is one token behind for each shard: upstream drops the tails.
    """
    default, ordered, peer = walk.ways()
    before_border = steps // SHARDS
    for step in range(steps):
        expected = peer()
        equal = [identical(ordered(), expected), identical(default(), expected) or step >= before_border]
        if not all(equal):
            return False
    return True


def identical(left: list[Batch], right: list[Batch]) -> bool:
    """Whether all inputs and targets are equal."""
    pairs = zip(left, right, strict=True)
    return all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


def time_steps(walk: Walk, steps: int) -> Iterator[tuple[float, ...]]:
    """Seconds of each way for each step, taken in turn."""
    ways = walk.ways()
    for _ in range(steps):
        yield tuple(timed(way) for way in ways)


def notes(default: list[float], ordered: list[float], peer: list[float]) -> tuple[str, ...]:
    """Upstream's order, and the step at a shard change (upstream loads at the end of the step before)."""
    steps, border = len(peer), len(peer) // SHARDS
    stall = [max(times[border - 1 : border + 1]) / median(times) for times in (default, peer)]
    return (
        f"{STEP_TOKENS:,} tokens, micro-batches of {ROWS} x {CONTEXT}, {steps} steps; a round is a step",
        f"step at a shard change: ours {stall[0]:.2f} x its median, upstream {stall[1]:.2f} x",
        f"data.order=upstream_python with {STEP_TOKENS // MICRO_TOKENS} micro-windows a step: "
        f"{seconds(median(ordered))}, {median(peer) / median(ordered):.3f}x as fast as upstream",
    )


ROW = Benchmark(
    "a step's batches from llm.c shards, as int64 tensors (data.order=exact_sequential, the default)",
    "upstream's DistributedDataLoader.next_batch",
    Reach(1.5, speed_up=True),
    measure,
)
