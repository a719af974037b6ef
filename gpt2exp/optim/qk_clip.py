"""QK clip: how large the attention logits were, head by head, and the rescaling that brings them down.

S_h is the largest q_i . k_j / sqrt(d) of head h with j <= i, over every row of every micro-batch of an update,
taken from the forward passes just run, before the softmax, after the scaling. With gamma_h = tau / max(S_h, tau)
the head's query rows are multiplied by gamma^balance and its key rows by gamma^(1 - balance), biases with them:
the same inputs then give logits of at most tau. Values, momentum and moments stay as they are (Kimi K2, 2025).

Shapes: B rows, H heads, T tokens, D head width, C = H D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

TILE = 64
"""Query rows of a tile: a tile's logits stay in cache, and keys after its last row are never multiplied."""
ROUNDING_MARGIN = 1e-5
"""Relative inflation of the bound, above the rounding of its own fp32 arithmetic."""


class MaxLogit(Enum):
    """Which maximum counts; on one measured head the three were 253, 264 and 293."""

    causal_signed = "causal_signed"
    """The largest logit that the softmax sees."""
    signed = "signed"
    """The largest logit, masked positions too."""
    causal_absolute = "causal_absolute"
    """The largest magnitude of what the softmax sees."""


@dataclass(frozen=True)
class QKClip:
    """Threshold tau, share of the shrinking that queries take, and the definition of the maximum."""

    threshold: float
    balance: float
    max_logit: MaxLogit = MaxLogit.causal_signed


def split_heads(qkv_BTC: torch.Tensor, n_head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """q_BHTD and k_BHTD from the output of c_attn (B, T, 3C), as the model itself splits it."""
    import torch

    batch, tokens, packed = qkv_BTC.shape
    width = packed // 3
    q_BTC, k_BTC, _ = torch.split(qkv_BTC.detach(), width, dim=2)
    shape = (batch, tokens, n_head, width // n_head)
    return q_BTC.view(shape).transpose(1, 2), k_BTC.view(shape).transpose(1, 2)


def max_logits(q_BHTD: torch.Tensor, k_BHTD: torch.Tensor, definition: MaxLogit) -> torch.Tensor:
    """The exact maximum of each head, max_H, at least in fp32; NaN where any logit is NaN.

    Causal definitions multiply each tile of queries with the keys up to its last row only.
    """
    import torch

    q_BHTD, keys_BHDT = _at_least_fp32(q_BHTD).contiguous(), _at_least_fp32(k_BHTD).contiguous().mT
    future_TT = torch.ones(TILE, TILE, dtype=torch.bool, device=q_BHTD.device).triu_(1)
    tokens = q_BHTD.shape[2]
    causal = definition is not MaxLogit.signed
    found: list[torch.Tensor] = []
    for start in range(0, tokens, TILE):
        end = min(start + TILE, tokens)
        logits = q_BHTD[:, :, start:end] @ (keys_BHDT[..., :end] if causal else keys_BHDT)
        if definition is MaxLogit.causal_absolute:
            logits.abs_()
        if causal:
            diagonal = logits[..., start:end]
            diagonal.masked_fill_(future_TT[: end - start, : end - start], float("-inf"))
        found.append(logits.amax((0, 2, 3)))
    return torch.stack(found).amax(0) / math.sqrt(q_BHTD.shape[3])


def upper_bound(q_BHTD: torch.Tensor, k_BHTD: torch.Tensor, definition: MaxLogit) -> torch.Tensor:
    """bound_H >= the exact maximum, from norms alone (Cauchy-Schwarz): |q_i| times the longest key up to i."""
    q_squares_BHT = _at_least_fp32(q_BHTD).square().sum(-1)
    k_squares_BHT = _at_least_fp32(k_BHTD).square().sum(-1)
    if definition is MaxLogit.signed:
        longest_BHT = k_squares_BHT.amax(-1, keepdim=True)
    else:
        longest_BHT = k_squares_BHT.cummax(-1).values
    products_H = (q_squares_BHT.sqrt() * longest_BHT.sqrt()).amax((0, 2))
    return products_H * ((1 + ROUNDING_MARGIN) / math.sqrt(q_BHTD.shape[3]))


def gammas(max_H: torch.Tensor, threshold: float) -> torch.Tensor:
    """gamma_H = tau / max(S, tau): 1 where S <= tau, for negative S too."""
    return threshold / max_H.clamp(min=threshold)


def rescale(weight_3CC: torch.Tensor, bias_3C: torch.Tensor | None, gamma_H: torch.Tensor, balance: float) -> None:
    """Shrink query and key rows of c_attn in place; a head with gamma 1 is multiplied by exactly 1."""
    heads = gamma_H.shape[0]
    factors_2H = (gamma_H**balance, gamma_H ** (1 - balance))
    for tensor in (weight_3CC, bias_3C):
        if tensor is None:
            continue
        rows = tensor.view(3, heads, tensor.shape[0] // (3 * heads), -1)
        for part, factor_H in zip(rows, factors_2H, strict=False):
            part.mul_(factor_H.to(tensor.dtype)[:, None, None])


def _at_least_fp32(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
