"""A SQL engine and the float64 torch engine on the same model and data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from quick import quickly

from gpt2exp import assembly
from gpt2exp.config import Config
from gpt2exp.data.windows import Window
from gpt2exp.engines.sql.engine import SqlEngine
from gpt2exp.engines.sql.hosts import build_host
from gpt2exp.engines.torch.backends.local import LocalBackend
from gpt2exp.engines.torch.engine import TorchEngine
from gpt2exp.models.build import build
from gpt2exp.optim.registry import optimizers

HOSTS = ("duckdb", "datafusion")
MINI = (
    "model=nanogpt_mini", "schedule.context_length=16", "schedule.tokens_per_step=64", "schedule.num_steps=8",
    "schedule.warmup_steps=2", "evaluation=off", "tracking=off", "hardware.orthogonalizer=ns", "hardware.threads=1",
    "precision=fp64", "logging.log_every=2",
)  # fmt: skip
SYNTHETIC = ("data=synthetic", "data.train_tokens=4096", "data.val_tokens=1025")
SGD = ("optimizer=sgd", "optimizer.lr=0.5", "optimizer.max_grad_norm=0")
"""As preset=nanogpt_mini_sgd has it."""
ADAMW = ("optimizer=nanogpt_adamw",)
MUON = ("optimizer=muon",)
MUONCLIP = ("optimizer=muonclip", "optimizer.qk_clip_threshold=0.002")
"""Clip forced: some head is over this threshold in every update of these models."""
BIASED = ("model.bias=true", "model.n_layer=2")


@dataclass
class Both:
    """The two engines and what they are fed."""

    cfg: Config
    host: str
    rows: int = 4
    replay: bool = True

    @cached_property
    def inputs(self):
        return assembly.resolve(self.cfg)

    @cached_property
    def settings(self):
        optimizer, recipe = optimizers()[self.cfg.optimizer.kind], self.cfg.optimizer
        return {
            "groups": optimizer.groups(recipe, self.cfg.model.n_head),
            "micro_batch_size": self.rows,
            "clip": optimizer.clip(recipe),
            "qk_clip": optimizer.qk_clip(recipe),
            "measure_every": self.cfg.logging.log_every,
        }

    @cached_property
    def torch(self) -> TorchEngine:
        backend = LocalBackend(self.cfg.precision, 1, self.cfg.hardware.orthogonalizer)
        return TorchEngine(build(self.cfg.model, self.cfg.seed, None), backend=backend, **self.settings)

    @cached_property
    def sql(self) -> SqlEngine:
        model = build(self.cfg.model, self.cfg.seed, None).double()
        weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
        return SqlEngine(self.cfg.model, weights, host=build_host(self.host), replay=self.replay, **self.settings)

    def window(self, u: int) -> Window:
        return self.inputs.windows.window(u)

    def step(self, steps: int, first: int = 0) -> None:
        for u in range(first, first + steps):
            for engine in (self.torch, self.sql):
                engine.update(u + 1, self.window(u), factor(u))

    def step_sql(self, steps: int, first: int = 0) -> None:
        for u in range(first, first + steps):
            self.sql.update(u + 1, self.window(u), factor(u))


def factor(u: int) -> float:
    return (0.5, 1.0, 0.75, 0.3, 0.9, 1.0, 0.2, 0.1)[u % 8]


def both(host: str, *overrides: str, rows: int = 4, replay: bool = True, data=SYNTHETIC) -> Both:
    return Both(quickly(*MINI, *data, *overrides), host, rows, replay)


def relative(found, expected) -> float:
    """The largest difference, each tensor's as a share of its largest value."""
    assert list(found) == list(expected)
    return max((gap(found[name], expected[name]) for name in expected), default=0.0)


def gap(found, expected) -> float:
    largest = float(np.abs(expected).max())
    difference = float(np.abs(found - expected).max())
    return difference / largest if largest else difference


def same_bits(a, b) -> bool:
    assert list(a) == list(b)
    return all(a[name].tobytes() == b[name].tobytes() for name in a)


def same_states(a, b) -> bool:
    return a.step == b.step and same_bits(a.weights, b.weights) and same_bits(a.slots, b.slots)
