"""Updates in SQL are PyTorch's in float64: every table, every moment, both databases."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ddxdb")

import torch
from both import ADAMW, BIASED, HOSTS, MUON, MUONCLIP, SGD, both, factor, relative

from gpt2exp.models.build import build

pytestmark = pytest.mark.sql

TESTS = Path(__file__).parent.parent
OPTIMIZERS = {"sgd": SGD, "adamw": ADAMW, "muon": MUON, "muonclip": MUONCLIP}
TOLERANCE = 1e-14


def assert_equal(pair, weights=TOLERANCE, slots=TOLERANCE):
    expected, found = pair.torch.state(), pair.sql.state()
    assert relative(found.weights, expected.weights) <= weights
    assert relative(found.slots, expected.slots) <= slots
    records = list(zip(pair.torch.drain(), pair.sql.drain(), strict=True))
    assert pair.cfg.optimizer.kind != "muonclip" or any(b.qk.clipped_heads for _, b in records)
    for a, b in records:
        assert (a.step, a.lr, a.gated, a.update_rms.keys()) == (b.step, b.lr, b.gated, b.update_rms.keys())
        numbers = (b.loss, b.grad_norm, b.clip_coef, *b.update_rms.values())
        assert numbers == pytest.approx((a.loss, a.grad_norm, a.clip_coef, *a.update_rms.values()), rel=1e-13)
        if a.qk:
            assert a.qk.clipped_heads == b.qk.clipped_heads
            assert b.qk.maxima == pytest.approx(a.qk.maxima, rel=1e-12)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_five_steps_are_those_of_torch(host, optimizer):
    pair = both(host, *OPTIMIZERS[optimizer])
    pair.step(5)
    assert_equal(pair)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("optimizer", ["adamw", "muonclip"])
def test_five_steps_on_tiny_shakespeare(host, optimizer, tinyshakespeare):
    pair = both(host, *OPTIMIZERS[optimizer], data=("data=tinyshakespeare", f"data.path={tinyshakespeare}"))
    pair.step(5)
    assert_equal(pair)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("optimizer", ["adamw", "muonclip"])
def test_with_biases_and_two_layers(host, optimizer):
    """AdamW divides the key biases' gradients, which are rounding, by their own size."""
    pair = both(host, *OPTIMIZERS[optimizer], *BIASED)
    pair.step(3)
    assert_equal(pair, weights=1e-10, slots=1e-12)


@pytest.mark.parametrize("host", HOSTS)
def test_micro_batches_are_accumulated(host):
    pair = both(host, *MUONCLIP, rows=2)
    pair.step(3)
    assert_equal(pair)


@pytest.mark.parametrize("host", HOSTS)
def test_adamw_is_torch_optim_adamw_after_clip_grad_norm(host):
    pair = both(host, *ADAMW, "optimizer.max_grad_norm=0.2")
    model = build(pair.cfg.model, pair.cfg.seed, None).double()
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    recipe = pair.cfg.optimizer
    stock = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": rest, "weight_decay": 0.0}],
        lr=recipe.lr, betas=recipe.betas, eps=recipe.eps,
    )  # fmt: skip
    for u in range(5):
        window = pair.window(u)
        stock.zero_grad()
        model(torch.from_numpy(window.inputs_NT), torch.from_numpy(window.targets_NT))[1].backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        for group in stock.param_groups:
            group["lr"] = recipe.lr * factor(u)
        stock.step()
        pair.step_sql(1, first=u)
        (record,) = pair.sql.drain()
        assert record.grad_norm == pytest.approx(norm.item(), rel=1e-14) and record.clip_coef < 1
    weights = {name: p.detach().numpy() for name, p in model.named_parameters()}
    assert relative(pair.sql.weights(), weights) <= TOLERANCE
    moments = {f"exp_avg/{name}": stock.state[p]["exp_avg"].numpy() for name, p in model.named_parameters()}
    slots = pair.sql.state().slots
    assert relative({name: slots[name] for name in moments}, moments) <= TOLERANCE


CHOICES = {
    "sgd with momentum": ("optimizer=sgd", "optimizer.momentum=0.9", "optimizer.weight_decay=0.1",
                          "optimizer.decay_scope=matrices"),
    "sgd with nesterov": ("optimizer=sgd", "optimizer.momentum=0.9", "optimizer.nesterov=true"),
    "adamw, hidden decay, no clip": ("optimizer=nanogpt_adamw", "optimizer.decay_scope=hidden",
                                     "optimizer.max_grad_norm=0"),
    "adamw without decay": ("optimizer=nanogpt_adamw", "optimizer.decay_scope=none"),
    "muon, moving average": ("optimizer=muon", "optimizer.momentum_form=ema", "optimizer.scale=spectral"),
    "muon without nesterov": ("optimizer=muon", "optimizer.nesterov=false", "optimizer.scale=none"),
    "muon, split": ("optimizer=muon", "optimizer.qkv=split", "optimizer.clip_scope=aux_only",
                    "optimizer.max_grad_norm=0.1"),
    "muon, per head, two layers": ("optimizer=muon", "optimizer.qkv=per_head", "model.n_layer=2"),
    "muonclip, all pairs": (*MUONCLIP, "optimizer.max_logit=signed", "optimizer.qk_clip_balance=0.3"),
    "muonclip, magnitudes": (*MUONCLIP, "optimizer.max_logit=causal_absolute"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_every_option_has_its_form(name):
    pair = both("duckdb", *CHOICES[name])
    pair.step(3)
    assert_equal(pair)


def test_the_polar_factor():
    """Sixteen rounds instead of five; small singular values multiply the rounding."""
    pair = both("duckdb", *MUON, "optimizer.polynomial=polar")
    pair.step(2)
    assert_equal(pair, weights=1e-9, slots=1e-9)


@pytest.mark.parametrize("host", HOSTS)
def test_gradients_evaluation_and_logits(host):
    pair = both(host, *ADAMW, *BIASED, "model.block_size=20", rows=3)
    window = pair.window(0)
    expected, found = pair.torch.gradients(window), pair.sql.gradients(window)
    largest = max(float(np.abs(g).max()) for g in expected.values())
    assert list(found) == list(expected)
    assert max(float(np.abs(found[n] - expected[n]).max()) for n in expected) <= 1e-14 * largest
    assert not found["transformer.wpe.weight"][16:].any(), "positions that no batch reaches"
    a, b = pair.torch.evaluate([window, pair.window(1)]), pair.sql.evaluate([window, pair.window(1)])
    assert (a.wrong_tokens, a.target_tokens) == (b.wrong_tokens, b.target_tokens)
    assert (b.loss_sum, b.batch_mean_loss) == pytest.approx((a.loss_sum, a.batch_mean_loss), rel=1e-14)
    for length in (1, 7, 20):
        tokens = np.arange(length) % 65
        np.testing.assert_allclose(pair.sql.logits(tokens), pair.torch.logits(tokens), rtol=0, atol=1e-15)
    assert pair.sql.compiles() == 0


@pytest.mark.parametrize("host", HOSTS)
def test_the_losses_of_sgd_are_the_pinned_ones(host):
    """Learning rate 0.5, another batch each step."""
    with (TESTS / "golden/sql_sgd_losses.csv").open() as file:
        pinned = [float(row["loss"]) for row in csv.DictReader(file)]
    pair = both(host, *SGD)
    for u in range(len(pinned)):
        pair.sql.update(u + 1, pair.window(u), 1.0)
    losses = [record.loss for record in pair.sql.drain()]
    assert losses == pytest.approx(pinned, rel=1e-13)
    assert losses[-1] < losses[0] - 0.15 and math.isfinite(losses[-1])
