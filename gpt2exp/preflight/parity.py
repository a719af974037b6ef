"""The device against plain PyTorch on the CPU in fp32: logits, and gradients of an accumulated micro-update.

The reference is the model's own code without an engine: no micro-batches of the device's size, no sharding, no
autocast, no hooks. So it does not share what could be wrong on the device's side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from gpt2exp.config import Config, Precision
from gpt2exp.data.windows import Window
from gpt2exp.engines.base import Array, Engine
from gpt2exp.engines.tolerances import Bound, Measure
from gpt2exp.models.build import build
from gpt2exp.models.upstream import SourceFile

GRADIENT_CONTEXT = 128
"""Tokens of a row whose gradients are compared: the CPU must keep up with all devices' rows."""
REFERENCE_ROWS = 8
"""Rows that the reference takes at once."""


@dataclass(frozen=True)
class Limits:
    """How far logits and gradients may be off, as a share of the largest magnitude in each reference tensor."""

    logits: Bound
    gradients: Bound


FP32 = Limits(
    logits=Bound(1e-5, Measure.of_largest, "fp32 against fp64 differs by 7e-7 (GPT-2, 1,024 tokens)"),
    gradients=Bound(1e-5, Measure.of_largest, "fp32 against fp64 differs by 2.4e-6 (GPT-2, 1,024 tokens)"),
)
BF16 = Limits(
    logits=Bound(3e-2, Measure.of_largest, "bf16 activations against fp64 differ by 9e-3 (GPT-2, 1,024 tokens)"),
    gradients=Bound(5e-2, Measure.of_largest, "bf16 activations against fp64 differ by 1.8e-2 (GPT-2, 128 tokens)"),
)
"""What rounding alone does was measured on a CPU: worst tensor, tiny, nano and GPT-2. The limits are about three times
that, because a device that sums in another order is as far off on its own side, and deeper models a little further."""


@dataclass(frozen=True)
class Distance:
    """The tensor that is furthest off, by a share of its own largest magnitude."""

    name: str
    share: float


def limits(precision: Precision) -> Limits:
    """Under fp64 too the reference is fp32, whose rounding is then all there is."""
    return BF16 if precision is Precision.bf16 else FP32


def logits_distance(cfg: Config, source: SourceFile | None, engine: Engine, window: Window) -> Distance:
    """Next-token logits after one, half and all tokens of the window's first row.

    The engine is given the tokens up to there and nothing after them, the reference the whole row: a mask that lets
    later tokens through would show.
    """
    tokens_T = window.inputs_NT[0]
    expected_TV = reference_logits(build(cfg.model, cfg.seed, source), tokens_T)
    ends = sorted({1, len(tokens_T) // 2 or 1, len(tokens_T)})
    found = {f"after {end} tokens": engine.logits(tokens_T[:end]) for end in ends}
    return furthest(found, {f"after {end} tokens": expected_TV[end - 1] for end in ends})


def reference_logits(model: nn.Module, tokens_T: Array) -> Array:
    """Logits_TV at every position of one row."""
    inputs_1T = torch.from_numpy(np.ascontiguousarray(tokens_T))[None]
    with torch.no_grad():
        logits_1TV, _ = model(inputs_1T, inputs_1T)
    return np.asarray(logits_1TV[0].numpy())


def reference_gradients(model: nn.Module, window: Window) -> dict[str, Array]:
    """Mean gradient over the window's rows, by upstream's names."""
    for piece in pieces(window, REFERENCE_ROWS):
        _, loss = model(torch.from_numpy(piece.inputs_NT), torch.from_numpy(piece.targets_NT), return_logits=False)
        (loss * (len(piece.inputs_NT) / len(window.inputs_NT))).backward()
    return {name: np.asarray(p.grad.numpy()) for name, p in model.named_parameters() if p.grad is not None}


def pieces(window: Window, rows: int) -> Iterator[Window]:
    """The window in windows of at most `rows` rows."""
    for start in range(0, len(window.inputs_NT), rows):
        yield Window(window.inputs_NT[start : start + rows], window.targets_NT[start : start + rows])


def excerpt(window: Window, rows: int) -> Window:
    """The first `rows` rows, shortened to what the CPU can follow."""
    cut = np.s_[:rows, :GRADIENT_CONTEXT]
    return Window(np.ascontiguousarray(window.inputs_NT[cut]), np.ascontiguousarray(window.targets_NT[cut]))


def furthest(found: Mapping[str, Array], expected: Mapping[str, Array]) -> Distance:
    """The largest distance; NaN, a missing tensor and another shape are infinitely far."""
    return max((Distance(name, share(found.get(name), array)) for name, array in expected.items()), key=by_share)


def by_share(distance: Distance) -> float:
    """Order of distances."""
    return distance.share


def share(found: Array | None, expected: Array) -> float:
    """Largest difference over the largest magnitude expected; infinite where nothing can be said."""
    if found is None or found.shape != expected.shape:
        return float("inf")
    scale = float(np.abs(expected).max())
    difference = float(np.abs(found.astype(np.float64) - expected).max())
    if difference == 0:
        return 0.0
    return difference / scale if scale and np.isfinite(difference) else float("inf")
