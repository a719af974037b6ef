"""Muon against optax.contrib, where optax is installed (`pip install optax`; not part of the dev extra)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from harness import Stepper, host_ops

from gpt2exp.optim.muon import MomentumForm, MuonRecipe, ScaleRule
from gpt2exp.optim.orthogonalize import OrthogonalizerKind

optax_muon = pytest.importorskip("optax.contrib", reason="optax is not installed").muon
jax = pytest.importorskip("jax")

SHAPES = {
    "transformer.h.0.attn.c_proj.weight": (8, 8),
    "transformer.h.0.mlp.c_fc.weight": (32, 8),
    "transformer.h.0.mlp.c_proj.weight": (8, 32),
    "transformer.wte.weight": (5, 8),
    "transformer.ln_f.weight": (8,),
}


def test_hidden_matrices_move_as_under_optax():
    """Four fp32 steps of its EMA momentum; its matrices are (in, out), so ours go in transposed.

    Without Nesterov: optax corrects the bias of momentum and gradient apart before it mixes them, which is another
    direction than KellerJordan's, torch's and ours. Without the mixture the correction is a factor, and cancels.
    """
    import optax

    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    hidden = [name for name in SHAPES if ".h." in name]
    transformation = optax_muon(learning_rate=0.02, beta=0.95, nesterov=False, eps=1e-7, weight_decay=0.1)
    theirs = {name: jax.numpy.asarray(weights[name].T) for name in hidden}
    state = transformation.init(theirs)
    recipe = MuonRecipe(momentum_form=MomentumForm.ema, nesterov=False, scale=ScaleRule.spectral)
    ours = Stepper(
        recipe, {name: torch.tensor(w) for name, w in weights.items()}, ops=host_ops(kind=OrthogonalizerKind.ns)
    )
    for _ in range(4):
        grads = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
        updates, state = transformation.update({n: jax.numpy.asarray(grads[n].T) for n in hidden}, state, theirs)
        theirs = optax.apply_updates(theirs, updates)
        ours.apply({name: torch.tensor(grad) for name, grad in grads.items()})
    for name in hidden:
        np.testing.assert_allclose(ours.params[name].numpy(), np.asarray(theirs[name]).T, atol=2e-5, err_msg=name)
