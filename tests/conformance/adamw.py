"""AdamW: float64 reference (Loshchilov & Hutter, 2019, Algorithm 2); peer torch.optim.AdamW, to the bit."""

from __future__ import annotations

import numpy as np
import torch
from harness import Row, WithFactor, decays, with_same_groups

from gpt2exp.optim.adamw import AdamWRecipe
from gpt2exp.optim.param_groups import DecayScope


def reference(recipe, weights, grads, factors):
    weights = {name: w.copy() for name, w in weights.items()}
    m = {name: np.zeros_like(w) for name, w in weights.items()}
    v = {name: np.zeros_like(w) for name, w in weights.items()}
    beta1, beta2 = recipe.betas
    for t, (grad, factor) in enumerate(zip(grads, factors, strict=True), start=1):
        lr = recipe.lr * factor
        for name, w in weights.items():
            m[name] = beta1 * m[name] + (1 - beta1) * grad[name]
            v[name] = beta2 * v[name] + (1 - beta2) * grad[name] ** 2
            m_hat, v_hat = m[name] / (1 - beta1**t), v[name] / (1 - beta2**t)
            wd = recipe.weight_decay if decays(recipe, name, w.shape) else 0.0
            weights[name] = w - lr * wd * w - lr * m_hat / (np.sqrt(v_hat) + recipe.eps)
    return weights


def peer(recipe, params):
    groups = with_same_groups(recipe, params, recipe.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, foreach=False)
    return WithFactor(optimizer)


ROW = Row(
    "adamw",
    (
        AdamWRecipe(lr=1e-2),
        AdamWRecipe(lr=1e-2, betas=(0.9, 0.99), weight_decay=0.3, decay_scope=DecayScope.hidden),
        AdamWRecipe(lr=1e-2, betas=(0.0, 0.999), eps=1e-6, decay_scope=DecayScope.none),
    ),
    reference,
    peer,
)
