"""Each check of a preflight passes on a sound machine and fails on what was broken by hand."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from quick import quickly
from torch import nn

from gpt2exp.data import corpora
from gpt2exp.data.synthetic import TRAIN_SEED, VAL_SEED, synthetic_tokens
from gpt2exp.data.windows import Window
from gpt2exp.engines.torch.backends.local import LocalBackend
from gpt2exp.engines.torch.engine import TorchEngine
from gpt2exp.errors import Gpt2ExpError
from gpt2exp.models import reference
from gpt2exp.preflight import parity, trial

NAMES = [
    "model file", "data", "token ids", "disk", "memory", "device", "tied weights", "forward", "products",
    "gradients", "updates", "compilations", "time",
]  # fmt: skip
ACCUMULATED = ("schedule.tokens_per_step=512", "hardware.micro_batch_size=2")
"""A step of 16 rows in 8 micro-batches."""


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GPT2EXP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@dataclass(frozen=True)
class Ended:
    """How a preflight ended, and what it said."""

    status: int
    out: str
    err: str = ""


@pytest.fixture
def preflight(monkeypatch, tmp_path, tiny_run):
    """`preflight("seed=1", ...)`: what `gpt2exp preflight` would print and how it would end, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*overrides, base=(*tiny_run, *ACCUMULATED), **options):
        lines = []
        try:
            trial.preflight(quickly(*base, *overrides), say=lines.append, **options)
        except Gpt2ExpError as error:
            return Ended(error.exit_code, "\n".join(lines), str(error))
        return Ended(0, "\n".join(lines))

    return run


@pytest.fixture
def refused(preflight, cache, tmp_path):
    """`refused(check, *overrides)`: the one line said when `check` is the first to fail; nothing is left."""

    def line(check, *overrides, status=3, **options):
        done = preflight(*overrides, **options)
        assert done.status == status, done
        shown = [text.split("  ") for text in done.out.splitlines()]
        assert [parts[0] for parts in shown] == ["pass"] * NAMES.index(check) + ["FAIL"], done.out
        assert shown[-1][1].strip() == check
        assert not list(cache.rglob("*.json")) and {file.name for file in tmp_path.iterdir()} <= {"cache", "wrong.py"}
        (problem,) = done.err.splitlines()
        return problem

    return line


def test_a_sound_machine_passes_and_leaves_nothing_but_a_stamp(cli, tiny_run, cache, tmp_path):
    done = cli("preflight", *tiny_run, "hardware.micro_batch_size=2")
    assert done.status == 0 and done.err == ""
    *lines, last = done.out.splitlines()
    assert [line[6:].split("  ")[0].strip() for line in lines] == NAMES
    (file,) = (entry for entry in cache.rglob("*") if entry.is_file())
    assert last.startswith("13 checks passed in ") and last.endswith(str(file))
    assert {entry.name for entry in tmp_path.iterdir()} == {"cache"}
    stamp = json.loads(file.read_text())
    assert [check["name"] for check in stamp["checks"]] == NAMES and all(c["passed"] for c in stamp["checks"])
    assert stamp["measured"]["update_compilations"] == [0, 0, 0]
    assert stamp["execution"]["hardware"] == "cpu" and stamp["execution"]["micro_batch_size"] == 2


def test_a_wrong_model_file(refused, tmp_path):
    (tmp_path / "wrong.py").write_text("class GPT: pass")
    problem = refused("model file", "model.source=llmc", "model.path=wrong.py")
    assert "SHA256 found" in problem and "757d0cea" in problem


def test_a_model_that_is_not_its_inventory(refused, monkeypatch):
    class Wider(reference.GPT):
        def __init__(self, config):
            super().__init__(config)
            self.gate = nn.Parameter(torch.zeros(3))

    monkeypatch.setattr(reference, "GPT", Wider)
    assert "gate 3 is not expected" in refused("model file")


def test_missing_data(refused):
    base = ("model=tiny", "data=text", "data.paths=[nowhere.txt]", "tracking=off", "checkpoint.keep=0")
    assert "nowhere.txt" in refused("data", status=6, base=base)


@pytest.mark.parametrize(
    ("seed", "position", "place"),
    [
        (TRAIN_SEED, 0, "training step 1"),
        (TRAIN_SEED, 4 * 512, "training step 4"),
        (VAL_SEED, 256, "the validation split"),
    ],
)
def test_a_token_outside_the_vocabulary(refused, monkeypatch, seed, position, place):
    def damaged(of, length, vocab_size):
        tokens = synthetic_tokens(of, length, vocab_size)
        if of == seed:
            tokens = tokens.copy()
            tokens[position] = 300
        return tokens

    monkeypatch.setattr(corpora, "synthetic_tokens", damaged)
    problem = refused("token ids", status=6)
    assert f"token 300 in {place}, expected below model.vocab_size=256" in problem


def test_a_full_disk(refused, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    assert "GB free" in refused("disk", status=7)


def test_a_micro_batch_that_does_not_fit(refused, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"total": 2_000_000}))
    assert "micro-batch of 2" in refused("memory")


def test_an_engine_that_takes_more_rows_than_were_estimated(refused, monkeypatch):
    monkeypatch.setattr("gpt2exp.preflight.memory.micro_batch_size", lambda cfg: 1)
    assert "takes 2 rows at once, the memory estimate allows 1" in refused("device")


def test_a_move_that_unties_and_is_noticed_by_the_engine(refused, monkeypatch):
    monkeypatch.setattr(LocalBackend, "place", lambda backend, model: untied(model))
    assert refused("device").startswith("preflight: device: AssertionError: untied")


def test_weights_untied_later(refused, monkeypatch):
    finished = TorchEngine.__init__

    def untying(engine, *args, **kwargs):
        finished(engine, *args, **kwargs)
        untied(engine.model)

    monkeypatch.setattr(TorchEngine, "__init__", untying)
    assert "are no longer one tensor" in refused("tied weights")


def untied(model):
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def test_a_device_error_is_one_line(refused, monkeypatch):
    def full(*args):
        raise RuntimeError("RESOURCE_EXHAUSTED: compile permanent error: hbm\nlong dump")

    monkeypatch.setattr(TorchEngine, "update", full)
    assert refused("updates") == ("preflight: updates: RuntimeError: RESOURCE_EXHAUSTED: compile permanent error: hbm")


@pytest.mark.parametrize(("factor", "passes"), [(1 + 1e-6, True), (1 + 1e-4, False), (float("nan"), False)])
def test_logits_of_another_attention(preflight, refused, monkeypatch, factor, passes):
    right = TorchEngine.logits
    monkeypatch.setattr(TorchEngine, "logits", lambda engine, tokens_T: right(engine, tokens_T) * factor)
    if passes:
        assert preflight().status == 0
    else:
        assert "expected at most 1e-05: the device computes otherwise" in refused("forward")


def test_attention_that_sees_later_tokens(refused, monkeypatch):
    """Then a row's logits change when tokens are added behind them."""
    right = TorchEngine.logits

    def padded(engine, tokens_T):
        return right(engine, np.concatenate([tokens_T, tokens_T[:1]])[-32:])

    monkeypatch.setattr(TorchEngine, "logits", padded)
    assert "logits differ" in refused("forward")


@pytest.mark.parametrize(
    ("name", "change", "passes"),
    [
        ("transformer.h.0.attn.c_attn.weight", 1e-6, True),
        ("transformer.h.0.attn.c_attn.weight", 1e-4, False),
        ("transformer.ln_f.bias", 1e-4, False),
        ("transformer.wte.weight", float("nan"), False),
    ],
)
def test_a_perturbed_gradient(preflight, refused, monkeypatch, name, change, passes):
    right = TorchEngine.gradients

    def perturbed(engine, window):
        found = right(engine, window)
        found[name].flat[3] += change * np.abs(found[name]).max()
        return found

    monkeypatch.setattr(TorchEngine, "gradients", perturbed)
    if passes:
        assert preflight().status == 0
    else:
        assert f"of the largest ({name})" in refused("gradients")


def test_a_micro_batch_that_is_not_counted(refused, monkeypatch):
    right = TorchEngine.gradients

    def without_the_last(engine, window):
        return right(engine, Window(window.inputs_NT[:-2], window.targets_NT[:-2]))

    monkeypatch.setattr(TorchEngine, "gradients", without_the_last)
    assert "gradients of 4 rows of 32 tokens differ" in refused("gradients")


def test_bf16_has_wider_limits_and_still_notices(preflight, monkeypatch):
    assert "limit 5e-02" in preflight("precision=bf16").out
    right = TorchEngine.gradients
    monkeypatch.setattr(
        TorchEngine, "gradients", lambda engine, window: {n: 1.1 * g for n, g in right(engine, window).items()}
    )
    done = preflight("precision=bf16")
    assert done.status == 3 and "gradients of 4 rows" in done.err


def test_an_update_that_is_not_finite(refused, monkeypatch):
    monkeypatch.setattr(TorchEngine, "_accumulate", poisoned(TorchEngine._accumulate))
    assert "update 1 at the real batch is not finite: loss nan" in refused("updates")


def poisoned(right):
    def accumulate(engine, window):
        loss = right(engine, window)
        return float("nan") if len(window.inputs_NT) == 16 else loss

    return accumulate


def test_updates_that_do_not_reach_the_weights(refused, monkeypatch):
    monkeypatch.setattr(TorchEngine, "_apply", lambda engine, scalars, measured: {})
    assert "moved in 3 updates, expected all" in refused("updates")


def test_a_learning_rate_of_zero_is_nobodys_mistake(preflight):
    assert preflight("optimizer=sgd", "optimizer.lr=0").status == 0


def test_a_graph_for_every_step(refused, monkeypatch):
    counter = count()
    monkeypatch.setattr(TorchEngine, "compiles", lambda engine: next(counter))
    assert "1 compilations after the second update, expected 0 (by update: [1, 1, 1])" in refused("compilations")


def test_compilations_in_the_first_update_are_expected(preflight, monkeypatch):
    def compiles(engine):
        return 0 if engine.step == 0 else 3

    monkeypatch.setattr(TorchEngine, "compiles", compiles)
    done = preflight()
    assert done.status == 0 and "by update [3, 0, 0], none after the second" in done.out


def test_a_budget_longer_than_the_hours_given(refused, preflight):
    assert "but --hours 1e-09 is all there is" in refused("time", hours=1e-9)
    assert preflight(hours=100).status == 0


@pytest.mark.parametrize("hours", ["0", "-1", "nan", "soon", ""])
def test_hours_must_be_a_time(cli, hours):
    done = cli("preflight", f"--hours={hours}")
    assert done.status == 2 and "--hours" in done.err


def test_a_failed_preflight_withdraws_the_stamp_of_an_earlier_one(preflight, cache, monkeypatch):
    assert preflight().status == 0 and list(cache.rglob("*.json"))
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"total": 2_000_000}))
    assert preflight(unless_fresh=True).status == 3
    assert not list(cache.rglob("*.json"))


def test_a_fresh_stamp_is_enough_where_it_is_asked_for(preflight):
    preflight()
    done = preflight(unless_fresh=True)
    assert done.status == 0 and "preflight made before" in done.out and "updates" not in done.out
    assert "updates" in preflight().out


def test_a_protocol_is_tried_out_run_by_run(cli, tiny_run, cache):
    done = cli("preflight", "protocol=three_seeds", *tiny_run)
    assert done.status == 0 and done.out.count("13 checks passed") == len(list(cache.rglob("*.json"))) == 3


def test_trying_out_leaves_an_engine_as_it_was(tiny_run):
    from gpt2exp.assembly import assemble

    parts = assemble(quickly(*tiny_run, *ACCUMULATED, "optimizer=muonclip_nano"), Path())
    other = assemble(quickly(*tiny_run, *ACCUMULATED, "optimizer=muonclip_nano"), Path())
    window = parts.inputs.windows.window(0)
    found = parts.engine.gradients(window)
    for engine in (parts.engine, other.engine):
        engine.update(1, window, 1.0)
    assert parts.engine.drain() == other.engine.drain()
    for name, array in other.engine.weights().items():
        assert np.array_equal(parts.engine.weights()[name], array)
    assert found.keys() == other.engine.weights().keys()


def test_the_reference_takes_rows_in_pieces_and_means_over_all(tiny_run):
    from gpt2exp.models.build import build

    cfg = quickly(*tiny_run, "schedule.tokens_per_step=640")
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 256, (20, 33))
    window = Window(np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:]))
    pieces = parity.reference_gradients(build(cfg.model, 1, None), window)
    model = build(cfg.model, 1, None)
    model(torch.from_numpy(window.inputs_NT), torch.from_numpy(window.targets_NT))[1].backward()
    whole = {name: p.grad.numpy() for name, p in model.named_parameters()}
    assert parity.furthest(pieces, whole).share < 5e-6


def test_products_at_less_than_full_precision(monkeypatch, refused):
    """What only the graph's text can tell."""
    found = Counter({("f32", "highest"): 38, ("f32", "default"): 1})
    monkeypatch.setattr(TorchEngine, "products", lambda engine, window: found, raising=False)
    assert "products of f32 at default, expected fp32 ones at highest" in refused("products")
