"""A whole MuonClip update against a whole AdamW update, on a model with GPT-2's ratio of width to tokens a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from benchmarking import Benchmark, Measurement, Reach, Settings, alternate

from gpt2exp.config import ModelConfig, ModelSource, Precision
from gpt2exp.data.windows import Window
from gpt2exp.engines.torch.backends.local import LocalBackend
from gpt2exp.engines.torch.engine import TorchEngine
from gpt2exp.models.build import build
from gpt2exp.optim.registry import optimizers

CONTEXT, MICRO_BATCH = 128, 36
TOKENS_PER_WIDTH = 524_288 / 768


def engine(kind: str, width: int, threads: int) -> TorchEngine:
    """A 4-layer GPT under the default recipe of `kind`."""
    model = ModelConfig("nano", ModelSource.reference, None, 4, 4, width, CONTEXT, 256)
    optimizer = optimizers()[kind]
    recipe = optimizer.recipe()
    return TorchEngine(
        build(model, 42, None),
        optimizer.groups(recipe, model.n_head),
        LocalBackend(Precision.fp32, threads),
        micro_batch_size=MICRO_BATCH,
        clip=optimizer.clip(recipe),
        qk_clip=optimizer.qk_clip(recipe),
        measure_every=10**9,
    )


def measure(settings: Settings) -> Measurement:
    """Forward, backward, clip, update and QK observation; the bound proves that nothing clips."""
    width = settings.choose(128, 64)
    rows = round(TOKENS_PER_WIDTH * width / CONTEXT / MICRO_BATCH) * MICRO_BATCH
    ids = np.random.default_rng(0).integers(0, 256, (rows, CONTEXT + 1))
    window = Window(np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:]))
    ours, peer = engine("muonclip", width, settings.threads), engine("adamw", width, settings.threads)
    steps = {id(ours): 0, id(peer): 0}

    def update(eng: TorchEngine) -> None:
        steps[id(eng)] += 1
        eng.update(steps[id(eng)], window, 1e-3)

    taken = alternate(lambda: update(ours), lambda: update(peer), rounds=settings.choose(5, 3))
    ours.close(), peer.close()
    torch.set_num_threads(settings.threads)
    note = f"width {width}, {rows * CONTEXT:,} tokens a step: {rows * CONTEXT / width:.0f} tokens per unit of width"
    return replace(taken, notes=(f"{note} (GPT-2: {TOKENS_PER_WIDTH:.0f})",))


ROW = Benchmark("a whole MuonClip update", "a whole AdamW update", Reach(1.05), measure)
