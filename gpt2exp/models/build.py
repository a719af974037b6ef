"""Builds the model that a configuration names, with its seed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gpt2exp.config import ModelConfig, ModelSource
from gpt2exp.models import reference, upstream
from gpt2exp.models.upstream import SourceFile


def build(model: ModelConfig, seed: int, source: SourceFile | None) -> nn.Module:
    """The model in fp32 on the CPU, initialised with `seed` by its own code (42 = upstream's weights).

    The seed reaches the model's own `init_rng` only; the file is not patched. Upstream's constructor
    also draws from torch's global generator (the default initialisation of its layers, overwritten at
    once); that state is put back, so building leaves every global generator as it was.

    Args:
        model: shape and source.
        seed: initialisation seed.
        source: the verified file; needed where `model.source` is llmc, else ignored.

    Raises:
        ConfigError: a shape that upstream's file cannot build.
        RefusedError: upstream's file cannot be imported here.
    """
    with torch.random.fork_rng(devices=[]):
        gpt: Any = _construct(model, source)
    gpt.init_rng.manual_seed(seed)
    gpt.apply(gpt._init_weights)
    assert gpt.lm_head.weight is gpt.transformer.wte.weight, "the output head must be tied to wte"
    built: nn.Module = gpt
    return built


def _construct(model: ModelConfig, source: SourceFile | None) -> nn.Module:
    if model.source is ModelSource.reference:
        return reference.GPT(model)
    assert source is not None, "model.source=llmc needs its file: call upstream.locate first"
    return upstream.build(model, source)
