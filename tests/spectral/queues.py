"""Small snapshots, and waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from gpt2exp.config import ModelConfig, ModelSource
from gpt2exp.spectral.slices import slices
from gpt2exp.spectral.snapshots import Header, stored_names

MODEL = ModelConfig("t", ModelSource.reference, None, n_layer=1, n_head=2, n_embd=32, block_size=8, vocab_size=32)


def header(step: int, **changes) -> Header:
    return Header(**{"step": step, "tokens": 64 * step, "seed": 42, "backend": "fast", "randomize": False,
                     "keep_weights": False, "slices": slices(MODEL), **changes})  # fmt: skip


def weights(seed: int = 0, width: int = 32) -> dict[str, np.ndarray]:
    """Gaussian matrices of one block."""
    random, names = np.random.default_rng(seed), stored_names(slices(MODEL))
    shapes = {"c_attn": (3 * width, width), "c_fc": (4 * width, width), "mlp.c_proj": (width, 4 * width)}
    return {
        name: 0.1 * random.standard_normal(next((s for part, s in shapes.items() if part in name), (width, width)))
        for name in names
    }


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for something that another process does."""
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("did not happen in time")
