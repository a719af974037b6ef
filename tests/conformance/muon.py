"""Muon: float64 reference from the equations; peer torch.optim.Muon (bf16) with AdamW on the rest."""

from __future__ import annotations

import numpy as np
import torch
from harness import N_HEAD, Row, WithFactor

from gpt2exp.optim.muon import AuxRecipe, MomentumForm, MuonRecipe, QKVBlocks, ScaleRule
from gpt2exp.optim.newton_schulz import NSPrecision, Polynomial
from gpt2exp.optim.param_groups import DecayScope


def orthogonal(x, recipe):
    u, s, vt = np.linalg.svd(x / max(np.linalg.norm(x), 1e-7), full_matrices=False)
    if recipe.polynomial is Polynomial.polar:
        return u @ vt
    for _ in range(recipe.ns_steps):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ vt


def scale(recipe, rows, columns):
    return {"rms": 0.2 * np.sqrt(max(rows, columns)), "spectral": np.sqrt(max(1, rows / columns)), "none": 1.0}[
        recipe.scale.name
    ]


def blocks(recipe, name, u):
    if not name.endswith("c_attn.weight") or recipe.qkv is QKVBlocks.packed:
        return [u]
    return np.split(u, 3 if recipe.qkv is QKVBlocks.split else 3 * N_HEAD)


def muon_step(recipe, name, w, g, b, lr):
    ema = recipe.momentum_form is MomentumForm.ema
    mu = recipe.momentum
    b = mu * b + ((1 - mu) * g if ema else g)
    u = ((1 - mu) * g if ema else g) + mu * b if recipe.nesterov else b
    step = np.concatenate([scale(recipe, *x.shape) * orthogonal(x, recipe) for x in blocks(recipe, name, u)])
    return w * (1 - lr * recipe.weight_decay) - lr * step, b


def reference(recipe, weights, grads, factors):
    weights = {name: w.copy() for name, w in weights.items()}
    b = {name: np.zeros_like(w) for name, w in weights.items()}
    m, v = ({name: np.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    aux = recipe.aux
    beta1, beta2 = aux.betas
    for t, (grad, factor) in enumerate(zip(grads, factors, strict=True), start=1):
        for name, w in weights.items():
            g = grad[name]
            if w.ndim == 2 and ".h." in name:
                weights[name], b[name] = muon_step(recipe, name, w, g, b[name], recipe.lr * factor)
                continue
            m[name] = beta1 * m[name] + (1 - beta1) * g
            v[name] = beta2 * v[name] + (1 - beta2) * g**2
            wd = aux.weight_decay if w.ndim == 2 and aux.decay_scope is DecayScope.matrices else 0.0
            ratio = m[name] / (1 - beta1**t) / (np.sqrt(v[name] / (1 - beta2**t)) + aux.eps)
            weights[name] = w - aux.lr * factor * (wd * w + ratio)
    return weights


RECIPES = (
    MuonRecipe(),
    MuonRecipe(qkv=QKVBlocks.split, scale=ScaleRule.spectral, nesterov=False, ns_steps=3),
    MuonRecipe(qkv=QKVBlocks.per_head, scale=ScaleRule.none, momentum_form=MomentumForm.ema),
    MuonRecipe(polynomial=Polynomial.polar, weight_decay=0.0, aux=AuxRecipe(decay_scope=DecayScope.none)),
)
TORCH_SETTINGS = (
    MuonRecipe(momentum_form=MomentumForm.ema, ns_precision=NSPrecision.bf16),
    MuonRecipe(momentum_form=MomentumForm.ema, ns_precision=NSPrecision.bf16, scale=ScaleRule.spectral, nesterov=False),
)


class TorchMuon:
    """`torch.optim.Muon` on the hidden matrices and `torch.optim.AdamW` on the rest."""

    def __init__(self, recipe, params):
        hidden = {n: p for n, p in params.items() if p.dim() == 2 and ".h." in n}
        rest = {n: p for n, p in params.items() if n not in hidden}
        self.muon = WithFactor(torch.optim.Muon(
            list(hidden.values()), lr=recipe.lr, weight_decay=recipe.weight_decay, momentum=recipe.momentum,
            nesterov=recipe.nesterov, ns_steps=recipe.ns_steps,
            adjust_lr_fn="match_rms_adamw" if recipe.scale is ScaleRule.rms else "original",
        ))  # fmt: skip
        aux = recipe.aux
        groups = [
            {"params": [p for p in rest.values() if p.dim() == 2], "weight_decay": aux.weight_decay},
            {"params": [p for p in rest.values() if p.dim() == 1], "weight_decay": 0.0},
        ]
        self.adamw = WithFactor(torch.optim.AdamW(groups, lr=aux.lr, betas=aux.betas, eps=aux.eps, foreach=False))

    def step(self, factor):
        self.muon.step(factor)
        self.adamw.step(factor)


ROW = Row("muon", RECIPES, reference, TorchMuon, TORCH_SETTINGS)
