"""Watches `attn.c_attn` during training and keeps each head's largest logit; the hooks return nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpt2exp.engines.base import QKRecord
from gpt2exp.optim.qk_clip import QKClip, gammas, max_logits, rescale, split_heads, upper_bound


class QKObserver:
    """Observes every block of `model` while it is in training mode with gradients on.

    Args:
        model: a GPT with upstream's names.
        clip: threshold, balance and definition of the maximum.
        bound_first: try the cheap bound and compute logits only where it does not prove that nothing clips.
    """

    def __init__(self, model: nn.Module, clip: QKClip, bound_first: bool) -> None:
        self.clip = clip
        self.bound_first = bound_first
        blocks: Any = model.get_submodule("transformer.h")
        self.attentions = [block.attn for block in blocks]
        self.maxima: list[torch.Tensor | None] = [None] * len(self.attentions)
        self.exact = [not bound_first] * len(self.attentions)
        self.handles = [
            attention.c_attn.register_forward_hook(self._hook(layer)) for layer, attention in enumerate(self.attentions)
        ]

    def finite(self) -> bool:
        """Whether every observed maximum is finite."""
        return all(bool(max_H.isfinite().all()) for max_H in self.maxima if max_H is not None)

    def record(self, clipped_heads: int) -> QKRecord:
        """What was seen since the last reset."""
        seen = [max_H for max_H in self.maxima if max_H is not None]
        kinds = tuple("exact" if exact else "bound" for exact in self.exact)
        return QKRecord(tuple(float(max_H.max()) for max_H in seen), kinds, clipped_heads)

    @torch.no_grad()
    def rescale(self) -> int:
        """Shrink the heads over the threshold; how many there were."""
        clipped = 0
        for attention, max_H in zip(self.attentions, self.maxima, strict=True):
            assert max_H is not None, "no training forward pass since the last reset"
            over = int((max_H > self.clip.threshold).sum())
            if over:
                gamma_H = gammas(max_H, self.clip.threshold)
                rescale(attention.c_attn.weight, attention.c_attn.bias, gamma_H, self.clip.balance)
            clipped += over
        return clipped

    def reset(self) -> None:
        """Forget: before each update, gated or not."""
        self.maxima = [None] * len(self.attentions)
        self.exact = [not self.bound_first] * len(self.attentions)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()

    def _hook(self, layer: int) -> Callable[..., None]:
        n_head = int(self.attentions[layer].n_head)

        def observe(module: nn.Module, inputs: Any, qkv_BTC: torch.Tensor) -> None:
            if module.training and torch.is_grad_enabled():
                self._observe(layer, qkv_BTC, n_head)

        return observe

    @torch.no_grad()
    def _observe(self, layer: int, qkv_BTC: torch.Tensor, n_head: int) -> None:
        q_BHTD, k_BHTD = split_heads(qkv_BTC, n_head)
        new_H = self._measure(layer, q_BHTD, k_BHTD)
        old_H = self.maxima[layer]
        self.maxima[layer] = new_H if old_H is None else torch.maximum(old_H, new_H)

    def _measure(self, layer: int, q_BHTD: torch.Tensor, k_BHTD: torch.Tensor) -> torch.Tensor:
        if self.bound_first:
            bound_H = upper_bound(q_BHTD, k_BHTD, self.clip.max_logit)
            if bool((bound_H <= self.clip.threshold).all()):
                return bound_H
            self.exact[layer] = True
        return max_logits(q_BHTD, k_BHTD, self.clip.max_logit)
