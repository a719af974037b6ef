"""The QK clip without reading the device: maxima stay there, and heads are rescaled there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpt2exp.optim.qk_clip import MaxLogit, QKClip, gammas, rescale, split_heads

NOTHING_SEEN = float("-inf")


class DeferredQKObserver:
    """Largest logit of every head over the forward passes of an update, on the device.

    The products repeat the model's own operations in its order, so that a compiler computes them once.

    Args:
        model: a GPT with upstream's names, on its device.
        clip: threshold, balance and definition of the maximum.
        replicate: declares tensors that live from step to step.
    """

    def __init__(self, model: nn.Module, clip: QKClip, replicate: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.clip = clip
        blocks: Any = model.get_submodule("transformer.h")
        self.attentions = [block.attn for block in blocks]
        first = next(model.parameters())
        self.maxima = [
            replicate(torch.full((int(attention.n_head),), NOTHING_SEEN, device=first.device, dtype=first.dtype))
            for attention in self.attentions
        ]
        self.handles = [
            attention.c_attn.register_forward_hook(self._hook(layer)) for layer, attention in enumerate(self.attentions)
        ]

    def finite(self) -> torch.Tensor:
        """Whether every maximum is finite, as a device value."""
        return torch.stack(self.maxima).isfinite().all()

    def largest(self) -> torch.Tensor:
        """The largest logit of each layer, max_L."""
        return torch.stack(self.maxima).amax(1)

    @torch.no_grad()
    def rescale(self, ok: torch.Tensor) -> torch.Tensor:
        """Shrink the heads over the threshold, where `ok`; how many there were."""
        clipped = torch.zeros((), device=ok.device)
        for attention, max_H in zip(self.attentions, self.maxima, strict=True):
            gamma_H = gammas(max_H, self.clip.threshold)
            gamma_H = torch.where(ok, gamma_H, torch.ones_like(gamma_H))
            rescale(attention.c_attn.weight, attention.c_attn.bias, gamma_H, self.clip.balance)
            clipped = clipped + ((max_H > self.clip.threshold) & ok).sum()
        return clipped

    def reset(self) -> None:
        """Forget, in place."""
        for max_H in self.maxima:
            max_H.fill_(NOTHING_SEEN)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()

    def _hook(self, layer: int) -> Callable[..., None]:
        n_head = int(self.attentions[layer].n_head)

        def observe(module: nn.Module, inputs: Any, qkv_BTC: torch.Tensor) -> None:
            if module.training and torch.is_grad_enabled():
                with torch.no_grad():
                    q_BHTD, k_BHTD = split_heads(qkv_BTC, n_head)
                    new_H = whole_maximum(q_BHTD, k_BHTD, self.clip.max_logit)
                    self.maxima[layer].copy_(torch.maximum(self.maxima[layer], new_H))

        return observe


def whole_maximum(q_BHTD: torch.Tensor, k_BHTD: torch.Tensor, definition: MaxLogit) -> torch.Tensor:
    """The exact maximum of each head, max_H in fp32 or wider, from all products at once."""
    logits_BHTT = (q_BHTD @ k_BHTD.transpose(-2, -1)) * (1.0 / math.sqrt(q_BHTD.shape[3]))
    if definition is MaxLogit.causal_absolute:
        logits_BHTT = logits_BHTT.abs()
    if definition is not MaxLogit.signed:
        tokens = logits_BHTT.shape[-1]
        future_TT = torch.ones(tokens, tokens, dtype=torch.bool, device=logits_BHTT.device).triu(1)
        logits_BHTT = logits_BHTT.masked_fill(future_TT, NOTHING_SEEN)
    max_H = logits_BHTT.amax((0, 2, 3))
    return max_H.float() if max_H.dtype is torch.bfloat16 else max_H
