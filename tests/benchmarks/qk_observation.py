"""What observing attention logits costs, as a share of the block that makes them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarking import Measurement, Settings, alternate

from gpt2exp.config import ModelConfig, ModelSource
from gpt2exp.models import upstream
from gpt2exp.optim.qk_clip import MaxLogit, split_heads

GPT2 = ModelConfig("block", ModelSource.llmc, None, 1, 12, 768, 1024, 64)


def observation_share(settings: Settings, observe: Callable[..., torch.Tensor]) -> Measurement:
    """`observe(q, k, definition)` against forward + backward of upstream's block, two rows of 1,024 tokens."""
    torch.set_num_threads(settings.threads)
    block = upstream.build(GPT2, upstream.locate(None)).get_submodule("transformer.h.0")
    x_BTC = torch.randn(2, 1024, 768, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with torch.no_grad():
        q_BHTD, k_BHTD = split_heads(block.attn.c_attn(block.ln_1(x_BTC)), 12)

    def ours() -> None:
        with torch.no_grad():
            observe(q_BHTD, k_BHTD, MaxLogit.causal_signed)

    def peer() -> None:
        block(x_BTC).sum().backward()

    return alternate(ours, peer, rounds=settings.choose(15, 5))
