"""QK clip: exact maxima, the bound above them, and what the rescaling guarantees."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2exp.optim.qk_clip import MaxLogit, gammas, max_logits, rescale, split_heads, upper_bound


def heads(seed, batch=2, n_head=3, tokens=40, width=8, scale=1.0, dtype=torch.float32):
    rng = np.random.default_rng(seed)
    q, k = scale * rng.standard_normal((2, batch, n_head, tokens, width))
    return torch.tensor(q, dtype=dtype), torch.tensor(k, dtype=dtype)


def by_definition(q, k, definition):
    """Loops over every pair, in float64."""
    q, k = q.double().numpy(), k.double().numpy()
    _, n_head, tokens, width = q.shape
    found = np.full(n_head, -np.inf)
    for h in range(n_head):
        for i in range(tokens):
            last = tokens if definition is MaxLogit.signed else i + 1
            logits = np.einsum("bd,bjd->bj", q[:, h, i], k[:, h, :last]) / math.sqrt(width)
            if definition is MaxLogit.causal_absolute:
                logits = np.abs(logits)
            found[h] = max(found[h], logits.max())
    return found


@pytest.mark.parametrize("tokens", [1, 5, 64, 65, 128, 300])
@pytest.mark.parametrize("definition", list(MaxLogit))
def test_exact_maximum_is_the_definition(definition, tokens):
    q, k = heads(1, tokens=tokens, dtype=torch.float64)
    np.testing.assert_allclose(max_logits(q, k, definition).numpy(), by_definition(q, k, definition), rtol=1e-12)


def test_the_three_definitions_differ():
    q, k = heads(0, n_head=30, tokens=6)
    signed, causal, absolute = (max_logits(q, k, MaxLogit[n]) for n in ("signed", "causal_signed", "causal_absolute"))
    assert (signed >= causal).all() and (absolute >= causal).all()
    assert not torch.equal(signed, causal) and not torch.equal(absolute, causal)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    tokens=st.integers(1, 12),
    width=st.integers(1, 9),
    definition=st.sampled_from(list(MaxLogit)),
    parallel=st.booleans(),
)
def test_the_bound_is_never_below_the_exact_maximum(seed, tokens, width, definition, parallel):
    """Fifty heads an example, 10,000 cases in all, their queries scaled from 1e-12 to 1e12.

    Parallel queries and keys make Cauchy-Schwarz tight: only the margin is left against rounding.
    """
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.uniform(-12, 12, (1, 50, 1, 1))
    q = torch.tensor(scales * rng.standard_normal((1, 50, tokens, width)), dtype=torch.float32)
    k = q * 3.0 if parallel else torch.tensor(rng.standard_normal(q.shape), dtype=torch.float32)
    assert (upper_bound(q, k, definition) >= max_logits(q, k, definition)).all()


def test_non_finite_logits_show():
    q, k = heads(0)
    q[0, 1, 3, 2] = float("nan")
    assert max_logits(q, k, MaxLogit.causal_signed)[1].isnan() and upper_bound(q, k, MaxLogit.causal_signed)[1].isnan()
    q[0, 1, 3, 2] = float("inf")
    assert not max_logits(q, k, MaxLogit.causal_signed)[1].isfinite()


def test_gamma_is_one_up_to_the_threshold_and_for_negative_maxima():
    found = gammas(torch.tensor([-5.0, 0.0, 99.0, 100.0, 200.0, 1e6]), 100.0)
    assert found.tolist() == pytest.approx([1, 1, 1, 1, 0.5, 1e-4])
    assert (found[:4] == 1).all()


@pytest.mark.parametrize("balance", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("with_bias", [True, False])
def test_after_a_clip_the_same_inputs_stay_under_the_threshold(balance, with_bias):
    torch.manual_seed(0)
    width, n_head, threshold = 24, 3, 2.0
    linear = torch.nn.Linear(width, 3 * width, bias=with_bias)
    with torch.no_grad():
        linear.weight[:8] *= 30  # head 0 far over
        linear.weight[8:16] *= 0.01
        x = torch.randn(2, 20, width)
        before = linear.weight.clone(), linear(x)
        max_H = max_logits(*split_heads(before[1], n_head), MaxLogit.causal_signed)
        assert max_H[0] > threshold and (max_H[1:] < threshold).all()
        rescale(linear.weight, linear.bias, gammas(max_H, threshold), balance)
        after_H = max_logits(*split_heads(linear(x), n_head), MaxLogit.causal_signed)
    assert after_H[0] == pytest.approx(threshold, rel=1e-5)
    assert torch.equal(after_H[1:], max_H[1:])
    changed = (linear.weight != before[0]).any(dim=1)
    rows = torch.zeros(3 * width, dtype=torch.bool)
    rows[:8], rows[24:32] = balance > 0, balance < 1
    assert torch.equal(changed, rows)


def test_a_negative_head_beside_a_head_over_the_threshold():
    """A signed quotient tau/S would be negative here and turn the square root into NaN."""
    weight, bias = torch.randn(12, 4), torch.randn(12)
    kept = weight.clone()
    rescale(weight, bias, gammas(torch.tensor([-3.0, 8.0]), 2.0), 0.5)
    assert weight.isfinite().all() and torch.equal(weight[:2], kept[:2])
    torch.testing.assert_close(weight[2:4], kept[2:4] * 0.5)
