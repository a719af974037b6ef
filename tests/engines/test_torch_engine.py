"""What any user of the engine may rely on: gating, accumulation, evaluation, state."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from gpt2exp.config import ModelConfig, ModelSource, Precision
from gpt2exp.data.windows import Window
from gpt2exp.engines.base import EngineState, weights_digest
from gpt2exp.engines.torch.backends.local import LocalBackend
from gpt2exp.engines.torch.engine import TorchEngine
from gpt2exp.errors import ConfigError
from gpt2exp.models.build import build
from gpt2exp.optim.adamw import AdamWRecipe, groups
from gpt2exp.optim.base import Clip

MODEL = ModelConfig("t", ModelSource.reference, None, 2, 2, 32, 16, 64, True)
RECIPE = AdamWRecipe(lr=1e-2)


def engine(micro=4, precision=Precision.fp32, recipe=RECIPE, seed=42, clip=1.0):
    return TorchEngine(
        build(MODEL, seed, None),
        groups(recipe, MODEL.n_head),
        LocalBackend(precision, 1),
        micro_batch_size=micro,
        clip=Clip(clip),
    )


def window(seed, rows=4, tokens=16):
    ids = np.random.default_rng(seed).integers(0, 64, (rows, tokens + 1))
    return Window(np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:]))


def train(eng, steps=5, start=0):
    for step in range(start + 1, start + steps + 1):
        eng.update(step, window(step), 1.0)
    return eng


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_records_say_what_happened():
    eng = train(engine())
    rows = eng.drain()
    assert [row.step for row in rows] == [1, 2, 3, 4, 5] and eng.drain() == []
    assert all(np.isfinite(row.loss) and row.grad_norm > 0 and not row.gated for row in rows)
    assert rows[0].lr == {"decay": 1e-2, "no_decay": 1e-2}


def without_key_bias(weights):
    """Softmax ignores the key bias, so its gradient is rounding noise, which Adam blows up to full steps."""
    return {
        name: np.delete(array, slice(32, 64)) if name.endswith("c_attn.bias") else array
        for name, array in weights.items()
    }


@pytest.mark.parametrize(("precision", "atol"), [(Precision.fp32, 2e-5), (Precision.fp64, 1e-12)])
def test_accumulation_changes_only_rounding(precision, atol):
    """Tolerances: a few units of rounding, through five Adam steps of size 1e-2."""
    one, four = (without_key_bias(train(engine(micro, precision)).weights()) for micro in (4, 1))
    for name, weight in one.items():
        np.testing.assert_allclose(four[name], weight, rtol=0, atol=atol, err_msg=name)


def test_two_engines_in_one_process_do_not_meet():
    alone = train(engine()).weights()
    a, b = engine(), engine(seed=1)
    for step in range(1, 6):
        a.update(step, window(step), 1.0)
        b.update(step, window(step + 50), 1.0)
    assert same(a.weights(), alone)


def test_no_random_number_is_drawn_after_construction():
    eng = engine()
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    train(eng)
    eng.evaluate([window(9)])
    eng.logits(np.arange(5))
    eng.state()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1]) and random.getstate() == before[2]


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_a_non_finite_update_moves_nothing_and_consumes_its_step(poison):
    eng = train(engine(), 2)
    before = eng.state()
    weight = eng.params["transformer.ln_f.weight"]
    with torch.no_grad():
        kept = weight[0].item()
        weight[0] = poison
    eng.update(3, window(3), 1.0)
    with torch.no_grad():
        weight[0] = kept
    after = eng.state()
    assert same(before.weights, after.weights) and same(before.slots, after.slots)
    assert after.step == 3 and eng.drain()[-1].gated
    eng.update(4, window(4), 1.0)
    assert not eng.drain()[-1].gated


def test_a_finite_loss_with_a_non_finite_gradient_is_gated():
    eng = engine()
    before = eng.state()
    hook = eng.params["transformer.wpe.weight"].register_hook(lambda grad: grad * float("nan"))
    eng.update(1, window(1), 1.0)
    hook.remove()
    record = eng.drain()[0]
    assert record.gated and np.isfinite(record.loss) and same(before.weights, eng.weights())


def test_clipping_is_global_and_torchs_own():
    eng = engine(clip=0.01)
    eng.update(1, window(1), 1.0)
    row = eng.drain()[0]
    assert row.clip_coef == pytest.approx(0.01 / (row.grad_norm + 1e-6), rel=1e-6)
    unclipped = engine(clip=0.0)
    unclipped.update(1, window(1), 1.0)
    assert unclipped.drain()[0].clip_coef == 1.0


def test_evaluation_does_not_depend_on_the_micro_batch_and_touches_nothing():
    a, b = engine(4), engine(1)
    digest = weights_digest(a.weights())
    windows = [window(1), window(2, rows=3)]
    left, right = a.evaluate(windows), b.evaluate(windows)
    assert left.target_tokens == right.target_tokens == 7 * 16
    assert left.wrong_tokens == right.wrong_tokens
    assert left.loss_sum == pytest.approx(right.loss_sum, rel=1e-6)
    assert weights_digest(a.weights()) == digest and a.model.training


def test_evaluation_sums_per_token_in_float64():
    eng = engine(precision=Precision.fp64)
    batch = window(1)
    record = eng.evaluate([batch])
    logits = np.stack([eng.logits(row[: t + 1]) for row in batch.inputs_NT for t in range(16)])
    log_z = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    nll = log_z - logits[np.arange(64), batch.targets_NT.ravel()]
    assert record.loss_sum == pytest.approx(nll.sum(), rel=1e-12)
    assert record.wrong_tokens == (logits.argmax(1) != batch.targets_NT.ravel()).sum()


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("precision", list(Precision))
def test_state_continues_bit_for_bit(at, precision):
    unbroken = train(engine(precision=precision), 5)
    first = train(engine(precision=precision), at)
    second = engine(precision=precision, seed=7)
    second.load(first.state())
    train(second, 5 - at, at)
    assert same(unbroken.weights(), second.weights()) and same(unbroken.state().slots, second.state().slots)


def test_state_is_a_copy():
    eng = engine()
    state = eng.state()
    kept = {name: array.copy() for name, array in state.weights.items()}
    train(eng, 1)
    assert same(kept, dict(state.weights))


def test_slots_carry_the_contracts_names():
    slots = engine().state().slots
    assert "exp_avg/transformer.wte.weight" in slots and "exp_avg_sq/transformer.h.1.mlp.c_proj.bias" in slots
    assert not any("lm_head" in name or name.endswith(".attn.bias") for name in slots)


def broken(state):
    name = "transformer.h.0.attn.c_attn.weight"
    weights = dict(state.weights)
    yield "missing", replace(state, weights={k: v for k, v in weights.items() if k != name})
    yield "not in this model", replace(state, weights={**weights, "extra": weights[name]})
    yield "float32[32, 96]", replace(state, weights={**weights, name: weights[name].T.copy()})
    yield "float64", replace(state, weights={**weights, name: weights[name].astype(np.float64)})
    yield "another order", replace(state, weights=dict(reversed(weights.items())))
    yield "slot exp_avg", replace(state, slots={})


def test_a_foreign_state_is_refused_before_anything_moves():
    eng = train(engine(), 2)
    before = eng.weights()
    for words, state in broken(eng.state()):
        with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
            eng.load(state)
        assert same(before, eng.weights())


def test_hyperparameters_come_from_the_recipe_not_from_the_state():
    donor = train(engine(recipe=replace(RECIPE, lr=0.5, weight_decay=0.0)), 1)
    eng = engine()
    eng.load(EngineState(1, donor.weights(), donor.state().slots))
    eng.update(2, window(2), 1.0)
    assert eng.drain()[0].lr["decay"] == RECIPE.lr
