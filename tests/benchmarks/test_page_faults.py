"""Counted, not timed: what `keep_freed_memory` is for."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from gpt2exp.config import ModelConfig, ModelSource, Precision
from gpt2exp.data.windows import Window
from gpt2exp.engines.torch.backends.local import LocalBackend
from gpt2exp.engines.torch.engine import TorchEngine
from gpt2exp.models.build import build
from gpt2exp.optim.adamw import AdamWRecipe, groups
from gpt2exp.optim.base import Clip

MODEL = ModelConfig("wide", ModelSource.reference, None, 1, 2, 192, 32, 50257)
"""An embedding of 38 MB: beyond the 32 MB up to which glibc learns by itself to keep what was freed."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_a_step_asks_the_system_for_no_new_memory():
    """Without it the gradients alone are some 30,000 page faults a step."""
    import resource

    recipe = groups(AdamWRecipe(), MODEL.n_head)
    backend = LocalBackend(Precision.fp32, 1)
    engine = TorchEngine(build(MODEL, 42, None), recipe, backend, micro_batch_size=1, clip=Clip(1.0))
    ids = np.random.default_rng(0).integers(0, 50257, (2, 33))
    window = Window(np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:]))
    faults = []
    for step in range(1, 7):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        engine.update(step, window, 1.0)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert min(faults[2:]) < 1_000, faults
