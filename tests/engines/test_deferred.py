"""Decisions on the device are the decisions of the host: same losses, weights, gates and records."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pairs import MUONCLIP, largest, pair

from gpt2exp.engines.torch.backends.eager import EagerBackend
from gpt2exp.engines.torch.deferred import DeferredEngine
from gpt2exp.optim.qk_clip import MaxLogit, max_logits

OPTIMIZERS = [("optimizer=adamw_nano",), ("optimizer=muon",), MUONCLIP, ("optimizer=sgd", "optimizer.momentum=0.9")]


def eager(*overrides: str):
    return pair(lambda precision: EagerBackend(precision, 1), *overrides)


@pytest.mark.parametrize("overrides", OPTIMIZERS, ids=lambda o: o[0].partition("=")[2])
def test_in_double_precision_it_is_the_same_arithmetic(overrides):
    """fp64 so that another order of rounding does not hide a difference of meaning."""
    both = eager(*overrides, "precision=fp64")
    both.step(7)
    assert largest(both.reference.weights(), both.deferred.weights()) < 1e-13
    assert largest(both.reference.state().slots, both.deferred.state().slots) < 1e-13
    for a, b in zip(both.reference.drain(), both.deferred.drain(), strict=True):
        assert (a.step, a.lr, a.gated, a.update_rms.keys()) == (b.step, b.lr, b.gated, b.update_rms.keys())
        assert (a.loss, a.grad_norm, a.clip_coef) == pytest.approx((b.loss, b.grad_norm, b.clip_coef), rel=1e-12)
        assert dict(a.update_rms) == pytest.approx(dict(b.update_rms), rel=1e-6)


def test_in_single_precision_only_rounding_differs():
    both = eager(*MUONCLIP)
    both.step(6)
    assert largest(both.reference.weights(), both.deferred.weights()) <= 2e-6
    clipped = [[record.qk.clipped_heads for record in engine.drain()] for engine in (both.reference, both.deferred)]
    assert clipped[0] == clipped[1] and all(clipped[0])


def test_qk_maxima_are_exact():
    both = eager(*MUONCLIP)
    both.step(3)
    for a, b in zip(both.reference.drain(), both.deferred.drain(), strict=True):
        assert b.qk.kinds == ("exact",) * len(b.qk.maxima)
        assert a.qk.maxima == pytest.approx(b.qk.maxima, rel=1e-5)


@pytest.mark.parametrize("definition", list(MaxLogit))
def test_the_whole_maximum_is_the_tiled_one(definition):
    from gpt2exp.engines.torch.deferred_qk import whole_maximum

    q, k = torch.randn(2, 3, 4, 100, 8, generator=torch.Generator().manual_seed(1)).double()
    torch.testing.assert_close(whole_maximum(q, k, definition), max_logits(q, k, definition), rtol=1e-14, atol=0)


def test_evaluation_counts_the_same_tokens():
    both = eager()
    a, b = both.reference.evaluate(both.validation()), both.deferred.evaluate(both.validation())
    assert (a.wrong_tokens, a.target_tokens) == (b.wrong_tokens, b.target_tokens)
    assert b.val_loss == pytest.approx(a.val_loss, rel=1e-7) and b.batch_mean_loss == pytest.approx(a.batch_mean_loss)


def test_evaluation_leaves_training_alone():
    both = eager(*MUONCLIP)
    both.reference.update(1, both.window(0), 1.0)
    both.deferred.evaluate(both.validation())
    both.deferred.update(1, both.window(0), 1.0)
    assert largest(both.reference.weights(), both.deferred.weights()) <= 2e-6


def poisoned(engine: DeferredEngine, window, step: int) -> None:
    """An update with one gradient that is not finite."""
    engine._upload({group.name: group.rule.step_scalars(step, 1.0) for group in engine.groups})
    batches = list(engine._micro_batches([window]))
    for inputs, targets in batches:
        engine._micro(inputs, targets, len(batches))
    next(iter(engine.params.values())).grad[3].fill_(math.nan)
    engine._finish()
    engine._pending.append((step, {}))


@pytest.mark.parametrize("overrides", OPTIMIZERS, ids=lambda o: o[0].partition("=")[2])
def test_a_poisoned_gradient_moves_no_bit(overrides):
    both = eager(*overrides)
    engine = both.deferred
    engine.update(1, both.window(0), 1.0)
    before = engine.state()
    poisoned(engine, both.window(1), 2)
    after = engine.state()
    for kind in ("weights", "slots"):
        for name, array in getattr(before, kind).items():
            np.testing.assert_array_equal(getattr(after, kind)[name], array)
    good, bad = engine.drain()
    assert not good.gated and bad.gated and bad.clip_coef == 1.0 and math.isnan(bad.grad_norm)
    engine.update(3, both.window(2), 1.0)
    (record,) = engine.drain()
    assert not record.gated and math.isfinite(record.loss)


def test_records_come_in_order_however_often_they_are_drained():
    both = eager()
    drained = []
    for u in range(8):
        both.reference.update(u + 1, both.window(u), 1.0)
        both.deferred.update(u + 1, both.window(u), 1.0)
        if u in (1, 2, 6):
            drained += both.deferred.drain()
    drained += both.deferred.drain()
    assert [record.step for record in drained] == list(range(1, 9))
    assert [r.loss for r in drained] == pytest.approx([r.loss for r in both.reference.drain()], rel=1e-6)
    assert both.deferred.drain() == []


def test_gradients_are_those_of_the_reference_and_are_forgotten():
    both = eager()
    before = both.deferred.weights()
    assert largest(both.reference.gradients(both.window(0)), both.deferred.gradients(both.window(0))) <= 1e-7
    assert largest(before, both.deferred.weights()) == 0.0
    both.step(2)
    assert largest(both.reference.weights(), both.deferred.weights()) <= 2e-6


def test_a_state_continues_exactly():
    both, again = eager(*MUONCLIP), eager(*MUONCLIP)
    both.step(6)
    half = eager(*MUONCLIP)
    half.step(3)
    again.deferred.load(half.deferred.state())
    for u in range(3, 6):
        again.deferred.update(u + 1, again.window(u), min(1.0, u / 2))
    assert largest(again.deferred.state().weights, both.deferred.state().weights) == 0.0
    assert largest(again.deferred.state().slots, both.deferred.state().slots) == 0.0


def test_a_state_loaded_between_two_drains_does_not_shift_the_ring():
    both = eager()
    start = both.reference.state()
    for engine in (both.reference, both.deferred):
        engine.update(1, both.window(0), 1.0)
        engine.load(start)
        engine.update(1, both.window(1), 1.0)
    (expected,), (found,) = both.reference.drain(), both.deferred.drain()
    assert found.loss == pytest.approx(expected.loss, rel=1e-6) and found.step == 1


def test_logits_of_any_length_are_the_models():
    both = eager()
    for length in (1, 5, 32):
        tokens = np.arange(length)
        np.testing.assert_allclose(both.deferred.logits(tokens), both.reference.logits(tokens), rtol=1e-5, atol=1e-6)
