"""SGD: float64 reference from the definition; peer torch.optim.SGD, to the bit."""

from __future__ import annotations

import numpy as np
import torch
from harness import Row, WithFactor, decays, with_same_groups

from gpt2exp.optim.param_groups import DecayScope
from gpt2exp.optim.sgd import SGDRecipe


def reference(recipe, weights, grads, factors):
    weights = {name: w.copy() for name, w in weights.items()}
    b = {name: np.zeros_like(w) for name, w in weights.items()}
    for grad, factor in zip(grads, factors, strict=True):
        for name, w in weights.items():
            wd = recipe.weight_decay if decays(recipe, name, w.shape) else 0.0
            g = grad[name] + wd * w
            b[name] = recipe.momentum * b[name] + g
            u = g + recipe.momentum * b[name] if recipe.nesterov else b[name]
            weights[name] = w - recipe.lr * factor * u
    return weights


def peer(recipe, params):
    groups = with_same_groups(recipe, params, recipe.weight_decay)
    optimizer = torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov, foreach=False)
    return WithFactor(optimizer)


ROW = Row(
    "sgd",
    (
        SGDRecipe(lr=0.1),
        SGDRecipe(lr=0.1, momentum=0.9, weight_decay=0.1, decay_scope=DecayScope.matrices),
        SGDRecipe(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, decay_scope=DecayScope.hidden),
    ),
    reference,
    peer,
)
