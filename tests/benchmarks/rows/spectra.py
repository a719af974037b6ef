"""Raw and clipped fits of GPT-2's 72 matrices: the fast backend against WeightWatcher, in CPU seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
from benchmarking import Benchmark, Measurement, Reach, Settings, seconds
from threadpoolctl import threadpool_limits

from gpt2exp.spectral import fast, reference
from gpt2exp.spectral.records import Array

WIDTH, BLOCKS = 768, 12
SHAPES = {
    "W_Q": (WIDTH, WIDTH),
    "W_K": (WIDTH, WIDTH),
    "W_V": (WIDTH, WIDTH),
    "W_O": (WIDTH, WIDTH),
    "W_MLP_IN": (4 * WIDTH, WIDTH),
    "W_MLP_OUT": (WIDTH, 4 * WIDTH),
}
Alphas = list[tuple[float, float]]


def measure(settings: Settings) -> Measurement:
    """Both fits of every matrix, by each way in turn, on one thread whatever OMP_NUM_THREADS says."""
    with threadpool_limits(1):
        return compare(initial_matrices(settings.choose(BLOCKS, 1)), settings.choose(3, 5))


def compare(matrices: dict[str, Array], rounds: int) -> Measurement:
    """Time both sides and compare every alpha."""
    sides: tuple[Callable[[], Alphas], ...] = (lambda: ours(matrices), lambda: peer(matrices))
    found = [side() for side in sides]
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            times[side].append(cpu_seconds(sides[side]))
    error = largest_error(*found)
    return Measurement(*times, same=error <= 1e-9, notes=notes(matrices, error))


def initial_matrices(blocks: int) -> dict[str, Array]:
    """GPT-2's hidden matrices at initialisation: normal, 0.02, output projections divided by sqrt(2 x layers)."""
    random = np.random.default_rng(42)
    scales = {"W_O": 0.02 / math.sqrt(2 * BLOCKS), "W_MLP_OUT": 0.02 / math.sqrt(2 * BLOCKS)}
    return {
        f"L{block:02}_{kind}": (scales.get(kind, 0.02) * random.standard_normal(shape)).astype(np.float32)
        for block in range(blocks)
        for kind, shape in SHAPES.items()
    }


def ours(matrices: dict[str, Array]) -> Alphas:
    """Raw and clipped alpha of every matrix."""
    spectra = [fast.measure(W, name) for name, W in matrices.items()]
    return [(spectrum.raw.alpha, spectrum.clipped.alpha) for spectrum in spectra]


def peer(matrices: dict[str, Array]) -> Alphas:
    """The same from two calls of `analyze`: one gives no D, xmin or tail of the raw fit."""
    with reference.quietly() as watcher:
        model = {f"{name}.weight": W for name, W in matrices.items()}
        raw = watcher().analyze(model)["alpha"]
        clipped = watcher().analyze(model, fix_fingers="clip_xmax")["alpha"]
    return list(zip(raw, clipped, strict=True))


def largest_error(found: Alphas, expected: Alphas) -> float:
    """Largest relative difference of any alpha."""
    return float(np.max(np.abs(np.array(found) / np.array(expected) - 1.0)))


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process, all threads together."""
    started = time.process_time()
    work()
    return time.process_time() - started


def notes(matrices: dict[str, Array], error: float) -> tuple[str, ...]:
    """Agreement, and what the same takes with the reference backend."""
    both = cpu_seconds(lambda: [reference.measure(W, name) for name, W in matrices.items()])
    return (
        f"{len(matrices)} matrices, CPU seconds of one thread, weightwatcher {reference.version()}; "
        f"largest relative difference of any alpha {error:.1e}",
        f"tracking.backend=weightwatcher (one decomposition for both fits): {seconds(both)}",
    )


ROW = Benchmark(
    "raw and clip_xmax fits of GPT-2's hidden matrices at initialisation (tracking.backend=fast)",
    "WeightWatcher's analyze() and analyze(fix_fingers='clip_xmax')",
    Reach(5.0, speed_up=True),
    measure,
)
