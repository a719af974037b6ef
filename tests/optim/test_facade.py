"""The optimizers in somebody else's training loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gpt2exp.optim
from gpt2exp.config import ModelConfig, ModelSource, Precision
from gpt2exp.data.windows import Window
from gpt2exp.engines.torch.backends.local import LocalBackend
from gpt2exp.engines.torch.engine import TorchEngine
from gpt2exp.errors import ConfigError
from gpt2exp.models.build import build
from gpt2exp.optim.registry import optimizers

MODEL = ModelConfig("t", ModelSource.reference, None, 2, 2, 32, 16, 64, True)
CLASSES = ["AdamW", "SGD", "Muon", "MuonClip"]


def batch(seed):
    ids = torch.tensor(np.random.default_rng(seed).integers(0, 64, (4, 17)))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def loop(model, optimizer, steps, first=0, scheduler=None):
    for step in range(first, first + steps):
        model(*batch(step))[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if scheduler:
            scheduler.step()


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", CLASSES)
def test_a_plain_loop_equals_the_engine_to_the_bit(name):
    torch.set_num_threads(1)
    model = build(MODEL, 42, None)
    optimizer = getattr(gpt2exp.optim, name)(model, n_head=2, lr=0.01)
    loop(model, optimizer, 4)
    entry = optimizers()[optimizer.kind]
    engine = TorchEngine(
        build(MODEL, 42, None), entry.groups(optimizer.recipe, 2), LocalBackend(Precision.fp32, 1),
        micro_batch_size=4, clip=entry.clip(optimizer.recipe), qk_clip=entry.qk_clip(optimizer.recipe),
    )  # fmt: skip
    for step in range(4):
        engine.update(step + 1, Window(*(t.numpy() for t in batch(step))), 1.0)
    found = weights(model)
    for key, expected in engine.weights().items():
        assert np.array_equal(found[key].numpy(), expected), key


@pytest.mark.parametrize("name", CLASSES)
def test_state_round_trip(name):
    make = getattr(gpt2exp.optim, name)
    model = build(MODEL, 42, None)
    optimizer = make(model, n_head=2)
    loop(model, optimizer, 2)
    copy = build(MODEL, 1, None)
    copy.load_state_dict(model.state_dict())
    other = make(copy, n_head=2)
    other.load_state_dict(optimizer.state_dict())
    loop(model, optimizer, 2, first=2)
    loop(copy, other, 2, first=2)
    assert same(weights(model), weights(copy))


def test_a_foreign_state_is_refused_naming_it_and_nothing_moves():
    model = build(MODEL, 42, None)
    optimizer = gpt2exp.optim.MuonClip(model, n_head=2)
    loop(model, optimizer, 1)
    good = optimizer.state_dict()
    key = "momentum_buffer/transformer.h.0.attn.c_attn.weight"
    for slots, words in (
        ({**good["slots"], key: good["slots"][key].T}, r"momentum_buffer.*\[32, 96\]"),
        ({**good["slots"], key: good["slots"][key].bfloat16()}, "bfloat16"),
        ({k: v for k, v in good["slots"].items() if k != key}, "missing"),
        ({**good["slots"], "extra": torch.zeros(1)}, "not in this optimizer"),
    ):
        with pytest.raises(ConfigError, match=words):
            optimizer.load_state_dict({"step": 1, "slots": slots})
    assert same(good["slots"], optimizer.state_dict()["slots"])


def test_hyperparameters_come_from_the_constructor():
    model = build(MODEL, 42, None)
    donor = gpt2exp.optim.Muon(model, n_head=2, lr=0.5)
    optimizer = gpt2exp.optim.Muon(model, n_head=2, lr=0.01)
    optimizer.load_state_dict(donor.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_one_scheduler_reaches_every_group():
    model = build(MODEL, 42, None)
    optimizer = gpt2exp.optim.MuonClip(model, n_head=2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step else 1.0)
    loop(model, optimizer, 1, scheduler=scheduler)
    before = weights(model)
    loop(model, optimizer, 1, first=1)
    assert same(before, weights(model))


def test_bad_values_and_foreign_models_are_refused():
    model = build(MODEL, 42, None)
    with pytest.raises(ConfigError, match=r"optimizer\.momentum=1"):
        gpt2exp.optim.Muon(model, n_head=2, momentum=1.0)
    with pytest.raises(ConfigError, match="'hidden' matches no tensor"):
        gpt2exp.optim.Muon(torch.nn.Linear(3, 3), n_head=2)


def test_importing_the_package_imports_no_torch():
    import subprocess
    import sys

    code = (
        "import sys, gpt2exp.optim as o; assert 'torch' not in sys.modules; o.MuonClip; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
