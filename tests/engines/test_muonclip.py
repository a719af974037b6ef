"""MuonClip in the engine: what is observed, when it clips, and that it is plain Muon otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gpt2exp.config import ModelConfig, ModelSource, Precision
from gpt2exp.data.windows import Window
from gpt2exp.engines.torch.backends.local import LocalBackend
from gpt2exp.engines.torch.engine import TorchEngine
from gpt2exp.models.build import build
from gpt2exp.optim.muonclip import MuonClipRecipe
from gpt2exp.optim.orthogonalize import OrthogonalizerKind
from gpt2exp.optim.qk_clip import MaxLogit
from gpt2exp.optim.registry import optimizers

MODEL = ModelConfig("t", ModelSource.reference, None, 2, 2, 32, 16, 64, True)
CLIP = MuonClipRecipe()
MUON = optimizers()["muon"].recipe()
LAYER = "transformer.h.0.attn.c_attn"


def engine(recipe, micro=4, precision=Precision.fp32, kind=OrthogonalizerKind.auto):
    optimizer = optimizers()[recipe.kind]
    return TorchEngine(
        build(MODEL, 42, None),
        optimizer.groups(recipe, MODEL.n_head),
        LocalBackend(precision, 1, kind),
        micro_batch_size=micro,
        clip=optimizer.clip(recipe),
        qk_clip=optimizer.qk_clip(recipe),
    )


def window(seed, rows=4, tokens=16):
    ids = np.random.default_rng(seed).integers(0, 64, (rows, tokens + 1))
    return Window(np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:]))


def train(eng, steps=4, factor=1.0):
    for step in range(1, steps + 1):
        eng.update(step, window(step), factor)
    return eng


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def heat(eng, head, by=60.0):
    """Make one head's query rows of the first block large."""
    with torch.no_grad():
        eng.params[f"{LAYER}.weight"].view(3, 2, 16, 32)[0, head] *= by


def test_48_hidden_matrices_and_100_auxiliary_tensors_of_gpt2():
    from gpt2exp.compose import compose
    from gpt2exp.models.inventory import parameters
    from gpt2exp.optim.base import TensorInfo
    from gpt2exp.optim.param_groups import assign

    tensors = [TensorInfo(p.name, p.shape) for p in parameters(compose(["model=gpt2", "evaluation=off",
               "model.source=reference"]).model)]  # fmt: skip
    owned = {group.name: group.tensors for group in assign(optimizers()["muonclip"].groups(CLIP, 12), tensors)}
    assert {name: len(group) for name, group in owned.items()} == {"hidden": 48, "aux_decay": 2, "aux_no_decay": 98}
    assert [t.name for t in owned["aux_decay"]] == ["transformer.wte.weight", "transformer.wpe.weight"]
    assert sum(np.prod(t.shape) for t in owned["hidden"]) == 84_934_656


@pytest.mark.parametrize("threshold", [100.0, 1e-3 + 5])
def test_without_a_head_over_the_threshold_it_is_plain_muon_bit_for_bit(threshold):
    clipped = train(engine(replace(CLIP, qk_clip_threshold=threshold)))
    plain = train(engine(MUON))
    assert same(clipped.weights(), plain.weights()) and same(clipped.state().slots, plain.state().slots)
    assert all(row.qk.clipped_heads == 0 for row in clipped.drain())
    assert all(row.qk is None for row in plain.drain())


def test_the_bound_skips_the_exact_maximum_and_changes_no_weight():
    by_bound = train(engine(replace(CLIP, qk_clip_threshold=100.0)))
    exact = engine(replace(CLIP, qk_clip_threshold=100.0))
    exact.observer.bound_first = False
    exact.observer.reset()
    train(exact)
    assert same(by_bound.weights(), exact.weights())
    for row, truth in zip(by_bound.drain(), exact.drain(), strict=True):
        assert row.qk.kinds == ("bound", "bound") and truth.qk.kinds == ("exact", "exact")
        assert all(b >= e for b, e in zip(row.qk.maxima, truth.qk.maxima, strict=True))


def test_one_hot_head_is_clipped_and_the_others_stay_bit_identical():
    """lr 0: the only thing that moves is the clip."""
    eng = engine(replace(CLIP, qk_clip_threshold=0.5))
    heat(eng, head=1)
    before = eng.weights()
    eng.update(1, window(1), 0.0)
    row = eng.drain()[0]
    assert row.qk.clipped_heads == 1 and row.qk.kinds[0] == "exact" and row.qk.maxima[0] > 0.5
    after = eng.weights()
    changed = np.any(after[f"{LAYER}.weight"] != before[f"{LAYER}.weight"], axis=1)
    assert changed[16:32].all() and changed[48:64].all() and changed.sum() == 32
    untouched = {name: array for name, array in before.items() if name not in (f"{LAYER}.weight", f"{LAYER}.bias")}
    assert same(untouched, {name: after[name] for name in untouched})
    eng.update(2, window(1), 0.0)
    replayed = eng.drain()[0]
    assert replayed.qk.maxima[0] <= 0.5 * (1 + 1e-5)


def test_the_clip_leaves_momentum_and_moments_alone():
    recipe = replace(CLIP, qk_clip_threshold=0.5)
    hot, plain = engine(recipe), engine(MUON)
    for eng in (hot, plain):
        heat(eng, head=0)
        eng.update(1, window(1), 1.0)
    assert hot.drain()[0].qk.clipped_heads == 1
    assert same(hot.state().slots, plain.state().slots)


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_the_maximum_is_over_all_micro_batches(micro):
    eng = engine(replace(CLIP, qk_clip_threshold=0.01), micro)
    eng.update(1, window(1), 0.0)
    whole = engine(replace(CLIP, qk_clip_threshold=0.01), 4)
    whole.update(1, window(1), 0.0)
    assert eng.drain()[0].qk.maxima == pytest.approx(whole.drain()[0].qk.maxima, rel=1e-5)


def test_evaluation_and_sampling_are_not_observed():
    eng = engine(CLIP)
    eng.evaluate([window(1)])
    eng.logits(np.arange(8))
    assert eng.observer.maxima == [None, None]


def test_non_finite_logits_gate_the_update():
    """A NaN put into the observation alone: loss and gradients are finite, and still nothing moves."""
    eng = engine(replace(CLIP, qk_clip_threshold=2.0))
    before = eng.state()

    def poisoned(module, inputs, output):
        eng.observer.maxima[1] = torch.tensor([1.0, float("nan")])

    handle = eng.model.get_submodule("transformer.h.1.mlp").register_forward_hook(poisoned)
    eng.update(1, window(1), 1.0)
    handle.remove()
    row = eng.drain()[0]
    assert row.gated and np.isfinite(row.loss) and row.qk.clipped_heads == 0
    assert same(before.weights, eng.weights()) and same(before.slots, eng.state().slots)
    eng.update(2, window(2), 1.0)
    assert not eng.drain()[0].gated


@pytest.mark.parametrize("definition", list(MaxLogit))
def test_each_definition_clips_to_its_own_maximum(definition):
    """The first layer's: deeper layers get other inputs once it is clipped."""
    eng = engine(replace(CLIP, qk_clip_threshold=0.005, max_logit=definition))
    eng.update(1, window(1), 0.0)
    assert eng.drain()[0].qk.clipped_heads == 4
    eng.update(2, window(1), 0.0)
    assert eng.drain()[0].qk.maxima[0] <= 0.005 * (1 + 1e-5)


@pytest.mark.parametrize("at", [1, 2])
def test_state_continues_bit_for_bit(at):
    unbroken = train(engine(CLIP))
    first = train(engine(CLIP), at)
    second = engine(CLIP)
    second.load(first.state())
    for step in range(at + 1, 5):
        second.update(step, window(step), 1.0)
    assert same(unbroken.weights(), second.weights()) and same(unbroken.state().slots, second.state().slots)


def test_orthogonalizers_agree_in_float64_and_are_recorded():
    a = train(engine(MUON, precision=Precision.fp64, kind=OrthogonalizerKind.ns), 2)
    b = train(engine(MUON, precision=Precision.fp64, kind=OrthogonalizerKind.eigh), 2)
    for name, weight in a.weights().items():
        np.testing.assert_allclose(b.weights()[name], weight, atol=1e-7, err_msg=name)
    assert (a.executors()["orthogonalizer"], b.executors()["orthogonalizer"]) == ("ns", "eigh")
    assert engine(MUON).executors()["orthogonalizer"] == "eigh", "auto is recorded as what it stands for"


def test_update_rms_of_the_hidden_group_is_the_scale_rules():
    """0.2 for a full-rank gradient; the first gradients of a model are not, so at most that."""
    eng = engine(MUON)
    eng.update(1, window(1), 1.0)
    rms = eng.drain()[0].update_rms
    assert 0.02 * 0.04 < rms["hidden"] < 0.02 * 0.25
    assert rms["aux_decay"] == pytest.approx(6e-4, rel=0.1)


@pytest.mark.parametrize("scope", ["all", "aux_only", "none"])
def test_clip_scope(scope):
    from gpt2exp.optim.muon import ClipScope

    eng = engine(replace(MUON, clip_scope=ClipScope[scope], max_grad_norm=1e-3))
    eng.update(1, window(1), 1.0)
    row = eng.drain()[0]
    slots = eng.state().slots
    hidden = slots[f"momentum_buffer/{LAYER}.weight"]
    reference = engine(replace(MUON, clip_scope=ClipScope.none))
    reference.update(1, window(1), 1.0)
    unclipped = reference.state().slots[f"momentum_buffer/{LAYER}.weight"]
    assert (row.clip_coef == 1.0) == (scope == "none")
    assert np.array_equal(hidden, unclipped) == (scope != "all")
