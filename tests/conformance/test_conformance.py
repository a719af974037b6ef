"""Every optimizer of the registry passes every line of this table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from harness import SHAPES, Stepper, arrays, host_ops, random_tensors, rows

from gpt2exp.optim.orthogonalize import OrthogonalizerKind
from gpt2exp.optim.registry import optimizers

ROWS = rows()
CASES = [pytest.param(row, recipe, id=f"{row.kind}{index}") for row in ROWS for index, recipe in enumerate(row.recipes)]
FACTORS = (0.25, 0.5, 1.0, 1.0, 0.7, 0.3, 0.0, 0.1)

case = pytest.mark.parametrize(("row", "recipe"), CASES)


def gradients(dtype=torch.float64, scale=1.0):
    return [random_tensors(100 + t, dtype, scale) for t in range(len(FACTORS))]


def stepped(recipe, dtype=torch.float64, scale=1.0, ops=None):
    stepper = Stepper(recipe, random_tensors(1, dtype), ops=ops or host_ops())
    for grad, factor in zip(gradients(dtype, scale), FACTORS, strict=True):
        stepper.apply(grad, factor)
    return stepper


def test_every_registered_optimizer_has_a_row():
    assert sorted(row.kind for row in ROWS) == sorted(optimizers())


@case
def test_equals_its_float64_reference(row, recipe):
    expected = row.reference(recipe, arrays(random_tensors(1)), [arrays(g) for g in gradients()], FACTORS)
    found = arrays(stepped(recipe, ops=host_ops(kind=OrthogonalizerKind.ns)).params)
    for name in SHAPES:
        np.testing.assert_allclose(found[name], expected[name], rtol=row.tolerance, atol=row.tolerance, err_msg=name)


PEER_CASES = [
    pytest.param(row, recipe, id=f"{row.kind}{index}")
    for row in ROWS
    if row.peer is not None
    for index, recipe in enumerate(row.peer_recipes or row.recipes)
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize(("row", "recipe"), PEER_CASES)
def test_equals_its_public_peer_to_the_bit(row, recipe, dtype):
    params = {name: p.requires_grad_() for name, p in random_tensors(1, dtype).items()}
    peer = row.peer(recipe, params)
    for grad, factor in zip(gradients(dtype), FACTORS, strict=True):
        for name, p in params.items():
            p.grad = grad[name].clone()
        peer.step(factor)
    found = stepped(recipe, dtype).params
    for name, p in params.items():
        assert torch.equal(found[name], p.detach()), name


@case
def test_repeats_to_the_bit(row, recipe):
    a, b = stepped(recipe, torch.float32), stepped(recipe, torch.float32)
    assert all(torch.equal(a.params[name], b.params[name]) for name in SHAPES)


@case
def test_the_size_of_tiles_changes_no_bit(row, recipe):
    whole, cut = (stepped(recipe, torch.float32, ops=host_ops(size)) for size in (10**9, 7))
    assert all(torch.equal(whole.params[name], cut.params[name]) for name in SHAPES)


@pytest.mark.parametrize("at", range(1, len(FACTORS)))
@case
def test_state_round_trips_at_every_step(row, recipe, at):
    unbroken = stepped(recipe, torch.float32)
    first = Stepper(recipe, random_tensors(1, torch.float32))
    steps = list(zip(gradients(torch.float32), FACTORS, strict=True))
    for grad, factor in steps[:at]:
        first.apply(grad, factor)
    second = Stepper(recipe, {name: p.clone() for name, p in first.params.items()}, step=at)
    for key, tensors in first.slots.items():
        second.slots[key] = [tensor.clone() for tensor in tensors]
    for grad, factor in steps[at:]:
        second.apply(grad, factor)
    assert all(torch.equal(second.params[name], unbroken.params[name]) for name in SHAPES)


@case
def test_lr_zero_leaves_weights_bit_identical(row, recipe):
    stepper = Stepper(recipe, random_tensors(1, torch.float32))
    before = {name: p.clone() for name, p in stepper.params.items()}
    for grad in gradients(torch.float32):
        stepper.apply(grad, 0.0)
    assert all(torch.equal(stepper.params[name], before[name]) for name in SHAPES)


@case
def test_the_schedule_reaches_every_group(row, recipe):
    full, half = (Stepper(recipe, random_tensors(1)) for _ in range(2))
    start = random_tensors(1)
    grad = random_tensors(7)
    full.apply(grad, 1.0)
    half.apply(grad, 0.5)
    for name in SHAPES:
        moved = (full.params[name] - start[name]).norm()
        assert moved > 0, name
        assert (half.params[name] - start[name]).norm() / moved == pytest.approx(0.5, rel=1e-6), name


@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e12], ids=["zero", "tiny", "huge"])
@case
def test_extreme_gradients_stay_finite(row, recipe, scale):
    stepper = stepped(recipe, torch.float32, scale)
    assert all(p.isfinite().all() for p in stepper.params.values())


@case
def test_transposed_and_strided_parameters_are_updated_like_contiguous_ones(row, recipe):
    plain = stepped(recipe, torch.float32)
    odd = {name: p.t().contiguous().t() if p.dim() == 2 else p for name, p in random_tensors(1, torch.float32).items()}
    stepper = Stepper(recipe, odd)
    assert any(not p.is_contiguous() for p in stepper.params.values())
    for grad, factor in zip(gradients(torch.float32), FACTORS, strict=True):
        stepper.apply(grad, factor)
    for name in SHAPES:
        torch.testing.assert_close(stepper.params[name], plain.params[name], rtol=1e-6, atol=1e-6)


@case
def test_bf16_parameters_are_updated_and_stay_bf16(row, recipe):
    stepper = stepped(recipe, torch.bfloat16)
    exact = arrays(stepped(recipe).params)
    for name, p in stepper.params.items():
        assert p.dtype is torch.bfloat16
        error = np.abs(p.double().numpy() - exact[name]).max()
        assert error < 0.05 * max(np.abs(exact[name]).max(), 1.0), name


def without_decay(recipe):
    """No decay, and an auxiliary learning rate that covers the distance."""
    changes = {"weight_decay": 0.0} if hasattr(recipe, "weight_decay") else {}
    if hasattr(recipe, "aux"):
        changes["aux"] = replace(recipe.aux, weight_decay=0.0, lr=1e-2)
    return replace(recipe, **changes)


@case
def test_a_quadratic_is_minimised(row, recipe):
    """f(W) = |W - A|²/2 from zero: every optimizer gets most of the way in 1,000 steps."""
    target = random_tensors(3)
    start = {name: torch.zeros_like(t) for name, t in target.items()}
    stepper = Stepper(without_decay(recipe), start)
    for t in range(1000):
        stepper.apply({name: p - target[name] for name, p in stepper.params.items()}, 1 - t / 1000)
    for name in SHAPES:
        assert (stepper.params[name] - target[name]).norm() < 0.1 * target[name].norm(), name


@case
def test_the_recipe_is_a_valid_configuration(row, recipe):
    assert optimizers()[row.kind].check(recipe) == []
    assert optimizers()[row.kind].check(replace(recipe, lr=-1.0)) != []
