"""Learning-rate schedules: pure functions of the update's index, the same for every engine and group."""

from __future__ import annotations

import math


def warmup_factor(it: int, warmup_steps: int, nanogpt_form: bool) -> float:
    """Linear warm-up at update `it` (from 0), for it < warmup_steps.

    llm.c's form (it+1)/warmup reaches 1 at the last warm-up update; nanoGPT's (it+1)/(warmup+1) stays below
    1 throughout (karpathy/nanoGPT, `get_lr`).
    """
    return (it + 1) / (warmup_steps + 1 if nanogpt_form else warmup_steps)


def decay_factor(it: int, warmup_steps: int, num_steps: int, shape: str, min_lr_ratio: float) -> float:
    """Decay at update `it` (from 0), for it >= warmup_steps: from 1 towards `min_lr_ratio`.

    `shape` is `cosine`, `linear` or `constant`. Progress is (it - warmup)/(num_steps - warmup), which
    would reach 1 one update after the last: upstream's and nanoGPT's convention.
    """
    if shape == "constant":
        return 1.0
    progress = (it - warmup_steps) / (num_steps - warmup_steps)
    coefficient = 0.5 * (1.0 + math.cos(math.pi * progress)) if shape == "cosine" else 1.0 - progress
    return min_lr_ratio + coefficient * (1.0 - min_lr_ratio)


def lr_factor(
    it: int,
    *,
    num_steps: int,
    warmup_steps: int,
    nanogpt_form: bool,
    shape: str,
    min_lr_ratio: float,
) -> float:
    """Factor in [0, 1] that multiplies every group's peak learning rate at update `it` (from 0)."""
    if it < warmup_steps:
        return warmup_factor(it, warmup_steps, nanogpt_form)
    return decay_factor(it, warmup_steps, num_steps, shape, min_lr_ratio)
