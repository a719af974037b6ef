"""What every optimizer must keep inside the engine, whatever it is."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from gpt2exp.config import ModelConfig, ModelSource, Precision
from gpt2exp.data.windows import Window
from gpt2exp.engines.base import weights_digest
from gpt2exp.engines.torch.backends.local import LocalBackend
from gpt2exp.engines.torch.engine import TorchEngine
from gpt2exp.errors import ConfigError
from gpt2exp.models.build import build
from gpt2exp.optim.registry import optimizers

MODEL = ModelConfig("t", ModelSource.reference, None, 2, 2, 32, 16, 64, True)
KINDS = sorted(optimizers())
every = pytest.mark.parametrize("kind", KINDS)


def engine(kind, micro=4, precision=Precision.fp32, **values):
    optimizer = optimizers()[kind]
    recipe = replace(optimizer.recipe(), **values)
    return TorchEngine(
        build(MODEL, 42, None),
        optimizer.groups(recipe, MODEL.n_head),
        LocalBackend(precision, 1),
        micro_batch_size=micro,
        clip=optimizer.clip(recipe),
        qk_clip=optimizer.qk_clip(recipe),
    )


def window(seed, rows=4, tokens=16):
    ids = np.random.default_rng(seed).integers(0, 64, (rows, tokens + 1))
    return Window(np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:]))


def train(eng, steps=4, start=0):
    for step in range(start + 1, start + steps + 1):
        eng.update(step, window(step), 1.0)
    return eng


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def without_key_bias(weights):
    """Softmax ignores the key bias, so its gradient is rounding noise, which Adam blows up to full steps."""
    return {n: np.delete(a, slice(32, 64)) if n.endswith("c_attn.bias") else a for n, a in weights.items()}


@every
def test_accumulating_four_micro_batches_is_one_of_four_rows(kind):
    """float64, so that only the definition can differ; 1e-6 leaves room for what Muon's gain amplifies."""
    one, four = (without_key_bias(train(engine(kind, micro, Precision.fp64)).weights()) for micro in (4, 1))
    for name, weight in one.items():
        np.testing.assert_allclose(four[name], weight, rtol=0, atol=1e-6, err_msg=name)


@every
def test_the_tied_weight_is_owned_once(kind):
    owned = [tensor.name for group in engine(kind).groups for tensor in group.tensors]
    assert len(owned) == len(set(owned)) == len(engine(kind).weights())
    assert "transformer.wte.weight" in owned and "lm_head.weight" not in owned


@every
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_non_finite_gradient_moves_nothing(kind, poison):
    eng = train(engine(kind), 2)
    before = eng.state()
    hook = eng.params["transformer.h.1.mlp.c_fc.weight"].register_hook(lambda grad: grad * poison)
    eng.update(3, window(3), 1.0)
    hook.remove()
    assert eng.drain()[-1].gated
    assert same(before.weights, eng.weights()) and same(before.slots, eng.state().slots)
    eng.update(4, window(4), 1.0)
    assert not eng.drain()[-1].gated and all(np.isfinite(w).all() for w in eng.weights().values())


@every
@pytest.mark.parametrize("at", [1, 2, 3])
def test_state_continues_bit_for_bit(kind, at):
    unbroken = train(engine(kind))
    second = engine(kind)
    second.load(train(engine(kind), at).state())
    train(second, 4 - at, at)
    assert same(unbroken.weights(), second.weights()) and same(unbroken.state().slots, second.state().slots)


@every
def test_reordered_parameters_are_refused(kind):
    eng = train(engine(kind), 1)
    state = eng.state()
    with pytest.raises(ConfigError, match="another order"):
        eng.load(replace(state, weights=dict(reversed(state.weights.items()))))


@pytest.mark.parametrize(("kind", "other"), [("adamw", "muonclip"), ("muonclip", "adamw")])
def test_two_in_one_process_are_two_processes(kind, other):
    first, second = engine(kind), engine(other)
    for step in range(1, 4):
        first.update(step, window(step), 1.0)
        second.update(step, window(step), 1.0)
    script = (
        f"import sys; sys.path.insert(0, {str(sys.path[0])!r}); sys.path.insert(0, {__file__.rpartition('/')[0]!r})\n"
        "from test_every_optimizer import engine, train, weights_digest\n"
        f"print(weights_digest(train(engine({kind!r}), 3).weights()))"
    )
    alone = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert weights_digest(first.weights()) == alone


@every
def test_it_learns(kind):
    """A corpus that a model can only predict by looking back one token: below its unigram entropy in 120 steps."""
    eng = engine(kind, **({"lr": 0.5} if kind == "sgd" else {"lr": 0.01}))
    rng = np.random.default_rng(0)
    follows = rng.permutation(64)
    entropy = np.log(64)
    for step in range(1, 121):
        ids = np.empty((4, 17), dtype=np.int64)
        ids[:, 0] = rng.integers(0, 64, 4)
        for t in range(16):
            ids[:, t + 1] = follows[ids[:, t]]
        eng.update(step, Window(np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])), 1.0)
    losses = [row.loss for row in eng.drain()]
    assert np.mean(losses[-10:]) < 0.7 * entropy, losses[-10:]
