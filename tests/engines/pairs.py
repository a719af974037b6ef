"""A reference engine and one on the device, on the same model and data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpt2exp import assembly
from gpt2exp.compose import compose
from gpt2exp.config import Config
from gpt2exp.data.windows import Window
from gpt2exp.engines.torch.backends.local import LocalBackend
from gpt2exp.engines.torch.deferred import DeferredEngine
from gpt2exp.engines.torch.engine import TorchEngine
from gpt2exp.models.build import build
from gpt2exp.optim.registry import optimizers

OVERRIDES = [
    "model=tiny", "data=synthetic", "data.train_tokens=20000", "data.val_tokens=2001", "schedule.num_steps=12",
    "schedule.context_length=32", "schedule.tokens_per_step=512", "schedule.warmup_steps=2", "evaluation.tokens=512",
    "tracking=off", "hardware.threads=1", "hardware.orthogonalizer=ns", "logging.log_every=3",
]  # fmt: skip
MUONCLIP = ("optimizer=muonclip", "optimizer.qk_clip_threshold=0.02")
"""So low that heads are clipped in every update."""
ROWS = 8
"""Of a micro-batch over all devices: two micro-batches a step."""


@dataclass
class Pair:
    """Both engines and what they are fed."""

    cfg: Config
    backend: Any

    @cached_property
    def inputs(self):
        return assembly.resolve(self.cfg)

    @cached_property
    def reference(self) -> TorchEngine:
        return self.build(TorchEngine, LocalBackend(self.cfg.precision, 1, self.cfg.hardware.orthogonalizer), ROWS)

    @cached_property
    def deferred(self) -> DeferredEngine:
        return self.build(DeferredEngine, self.backend, ROWS // self.backend.devices)

    def build(self, kind, backend, micro_batch_size):
        optimizer, recipe = optimizers()[self.cfg.optimizer.kind], self.cfg.optimizer
        return kind(
            build(self.cfg.model, self.cfg.seed, self.inputs.source),
            optimizer.groups(recipe, self.cfg.model.n_head),
            backend,
            micro_batch_size=micro_batch_size,
            clip=optimizer.clip(recipe),
            qk_clip=optimizer.qk_clip(recipe),
            measure_every=self.cfg.logging.log_every,
        )

    def window(self, u: int) -> Window:
        return self.inputs.windows.window(u)

    def validation(self):
        return assembly.validation(self.cfg, self.inputs.corpus, ROWS).windows()

    def step(self, steps: int, factor=lambda u: min(1.0, u / 2)) -> None:
        for u in range(steps):
            for engine in (self.reference, self.deferred):
                engine.update(u + 1, self.window(u), factor(u))


def pair(backend_of, *overrides: str) -> Pair:
    cfg = compose([*OVERRIDES, *overrides])
    return Pair(cfg, backend_of(cfg.precision))


def largest(a, b) -> float:
    """Largest absolute difference over tensors of the same names."""
    assert list(a) == list(b)
    return max((float(np.abs(a[name] - b[name]).max()) for name in a), default=0.0)
