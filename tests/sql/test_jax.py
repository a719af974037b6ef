"""AdamW in SQL is AdamW on a GPT-2 written in JAX, which shares no code with us or with PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("ddxdb")

import jax
import jax.numpy as jnp
from both import ADAMW, both, factor, relative

pytestmark = pytest.mark.sql

STEPS = 5
MAX_NORM = 0.2
"""Below every gradient norm of these steps: each is clipped."""


@pytest.fixture
def float64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def norm(x, scale):
    """Layer norm without bias over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


def attention(x_NTE, weights, block, heads):
    """Causal softmax attention with its output projection."""
    rows, positions, width = x_NTE.shape
    packed = x_NTE @ weights[f"{block}.attn.c_attn.weight"].T
    q, k, v = (part.reshape(rows, positions, heads, width // heads) for part in jnp.split(packed, 3, axis=-1))
    scores_NHTT = jnp.einsum("nqhc,nkhc->nhqk", q, k) / jnp.sqrt(width // heads)
    scores_NHTT = jnp.where(jnp.tril(jnp.ones((positions, positions), bool)), scores_NHTT, -jnp.inf)
    attended = jnp.einsum("nhqk,nkhc->nqhc", jax.nn.softmax(scores_NHTT, axis=-1), v)
    return attended.reshape(rows, positions, width) @ weights[f"{block}.attn.c_proj.weight"].T


def loss(weights, inputs_NT, targets_NT, layers, heads):
    """Mean cross-entropy of the bias-free GPT-2 with a tied output head."""
    wte = weights["transformer.wte.weight"]
    x = wte[inputs_NT] + weights["transformer.wpe.weight"][: inputs_NT.shape[1]]
    for layer in range(layers):
        block = f"transformer.h.{layer}"
        x = x + attention(norm(x, weights[f"{block}.ln_1.weight"]), weights, block, heads)
        hidden = norm(x, weights[f"{block}.ln_2.weight"]) @ weights[f"{block}.mlp.c_fc.weight"].T
        x = x + jax.nn.gelu(hidden, approximate=True) @ weights[f"{block}.mlp.c_proj.weight"].T
    log_probabilities = jax.nn.log_softmax(norm(x, weights["transformer.ln_f.weight"]) @ wte.T, axis=-1)
    return -jnp.take_along_axis(log_probabilities, targets_NT[..., None], axis=-1).mean()


def adamw(weight, gradient, moments, step, lr, recipe):
    """Loshchilov and Hutter's algorithm 2: the new weight and its moments."""
    (beta1, beta2), (first, second) = recipe.betas, moments
    first = beta1 * first + (1 - beta1) * gradient
    second = beta2 * second + (1 - beta2) * gradient**2
    corrected = jnp.sqrt(second / (1 - beta2**step)) + recipe.eps
    decay = recipe.weight_decay if weight.ndim >= 2 else 0.0
    return weight - lr * decay * weight - lr * first / (1 - beta1**step) / corrected, (first, second)


def clipped(gradients):
    """The gradients, their global norm and the coefficient they were multiplied with."""
    total = jnp.sqrt(sum((g**2).sum() for g in gradients.values()))
    coefficient = jnp.minimum(1.0, MAX_NORM / (total + 1e-6))
    return {name: g * coefficient for name, g in gradients.items()}, float(total), float(coefficient)


def test_five_steps_of_adamw_are_those_of_jax(float64):
    pair = both("duckdb", *ADAMW, f"optimizer.max_grad_norm={MAX_NORM}")
    model, recipe = pair.cfg.model, pair.cfg.optimizer
    weights = {name: jnp.asarray(array) for name, array in pair.sql.weights().items()}
    assert all(array.dtype == jnp.float64 for array in weights.values())
    moments = {name: (jnp.zeros_like(w), jnp.zeros_like(w)) for name, w in weights.items()}
    value_and_grad = jax.value_and_grad(loss)
    for u in range(STEPS):
        window, step = pair.window(u), u + 1
        value, found = value_and_grad(weights, window.inputs_NT, window.targets_NT, model.n_layer, model.n_head)
        gradients, total, coefficient = clipped(found)
        for name in weights:
            lr = recipe.lr * factor(u)
            weights[name], moments[name] = adamw(weights[name], gradients[name], moments[name], step, lr, recipe)
        pair.sql.update(step, window, factor(u))
        (record,) = pair.sql.drain()
        assert coefficient < 1, "the clip is not exercised"
        expected = pytest.approx((float(value), total, coefficient), rel=1e-12)
        assert (record.loss, record.grad_norm, record.clip_coef) == expected
    assert relative(pair.sql.weights(), {name: np.asarray(w) for name, w in weights.items()}) <= 1e-12
