"""Schedules at the steps where off-by-one lives, against upstream's and nanoGPT's rules said again here."""

from __future__ import annotations

import math

import pytest
from quick import quickly

from gpt2exp.schedule import lr_factor
from gpt2exp.train.loop import Loop

NUM_STEPS, WARMUP = 100, 7


def factor(it, **changes):
    settings = {"num_steps": NUM_STEPS, "warmup_steps": WARMUP, "nanogpt_form": False, "shape": "cosine",
                "min_lr_ratio": 0.0, **changes}  # fmt: skip
    return lr_factor(it, **settings)


def upstream(it, peak=6e-4, frac=0.0):
    """karpathy/llm.c train_gpt2.py, get_lr, as a rate."""
    if it < WARMUP:
        return peak * (it + 1) / WARMUP
    progress = (it - WARMUP) / (NUM_STEPS - WARMUP)
    return peak * frac + 0.5 * (1 + math.cos(math.pi * progress)) * (peak - peak * frac)


def nanogpt(it, peak=1e-3, least=1e-4):
    """karpathy/nanoGPT train.py, get_lr, as a rate."""
    if it < WARMUP:
        return peak * (it + 1) / (WARMUP + 1)
    progress = (it - WARMUP) / (NUM_STEPS - WARMUP)
    return least + 0.5 * (1 + math.cos(math.pi * progress)) * (peak - least)


@pytest.mark.parametrize("it", [0, WARMUP - 1, WARMUP, WARMUP + 1, NUM_STEPS - 1])
def test_both_published_forms(it):
    assert 6e-4 * factor(it) == pytest.approx(upstream(it), rel=1e-15)
    ours = 1e-3 * factor(it, nanogpt_form=True, min_lr_ratio=0.1)
    assert ours == pytest.approx(nanogpt(it), rel=1e-14)


def test_the_ends_of_warm_up():
    assert factor(0) == 1 / 7 and factor(6) == 1.0 and factor(7) == 1.0
    assert factor(0, nanogpt_form=True) == 1 / 8 and factor(6, nanogpt_form=True) == 7 / 8
    assert factor(7, nanogpt_form=True) == 1.0


def test_the_last_update_is_one_short_of_the_minimum():
    assert 0 < factor(99) < factor(98) and factor(99, min_lr_ratio=0.1) > 0.1
    assert factor(99, shape="linear") == pytest.approx(1 / 93)


def test_no_warm_up_and_no_decay():
    assert [factor(it, warmup_steps=0, shape="constant") for it in (0, 50, 99)] == [1.0, 1.0, 1.0]
    assert factor(0, warmup_steps=0) == 1.0


@pytest.mark.parametrize("shape", ["cosine", "linear", "constant"])
def test_factors_stay_between_the_minimum_and_one(shape):
    factors = [factor(it, shape=shape, min_lr_ratio=0.1) for it in range(NUM_STEPS)]
    assert all(0 < f <= 1 for f in factors)
    assert all(a >= b for a, b in zip(factors[WARMUP:], factors[WARMUP + 1 :], strict=False))


@pytest.mark.parametrize(
    ("schedule", "it", "expected"),
    [
        ("gpt2_fineweb", 699, 1.0),
        ("gpt2_fineweb", 10_130, 0.5),
        ("nanogpt_shakespeare", 99, 100 / 101),
        ("constant", 0, 1.0),
    ],
)
def test_the_shipped_schedules(schedule, it, expected):
    """llm.c's published log has 6e-4 at update 699 and 3e-4 at 10,130: the middle of its cosine."""
    overrides = ["model=gpt2", "model.source=reference", f"schedule={schedule}", "data=synthetic", "evaluation=off"]
    cfg = quickly(*overrides, "optimizer=adamw")
    loop = Loop(cfg, *[None] * 6, step=0, evaluations={})
    assert loop.factor(it) == pytest.approx(expected, rel=1e-12)
