"""The real torch_xla on four virtual CPU devices: the numbers of plain PyTorch, no graph and no read within a step."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from pairs import MUONCLIP, largest, pair

from gpt2exp.data.windows import Window
from gpt2exp.engines.torch.backends.xla import XlaBackend, sharding
from gpt2exp.engines.torch.hlo import imprecise

pytestmark = pytest.mark.xla


def on_xla(*overrides: str):
    return pair(lambda precision: XlaBackend("xla_cpu", 4, precision), *overrides)


def compiled(engine, step) -> int:
    before = engine.compiles()
    step()
    engine.on_device.sync()
    return engine.compiles() - before


@pytest.fixture(scope="module")
def six():
    """Six updates of MuonClip with heads clipped in every one, and what each compiled and read."""
    both = on_xla(*MUONCLIP)
    compiles, reads = [], []
    for u in range(6):
        before = both.backend.transfers()
        factor = min(1.0, u / 2)
        compiles.append(compiled(both.deferred, lambda u=u, f=factor: both.deferred.update(u + 1, both.window(u), f)))
        reads.append(both.backend.transfers() - before)
        both.reference.update(u + 1, both.window(u), factor)
    return both, compiles, reads, both.reference.drain(), both.deferred.drain()


def test_nothing_is_compiled_after_the_first_step(six):
    """Learning rate 0 in the first, and weight decay equal to the rate: neither is another graph."""
    _, compiles, _, _, _ = six
    assert compiles[0] > 0 and compiles[1:] == [0, 0, 0, 0, 0]


def test_a_step_reads_nothing_but_the_ring_when_it_is_full(six):
    """logging.log_every=3: the fourth update empties the ring before it is written over."""
    assert six[2] == [0, 0, 0, 1, 0, 0]


def test_losses_norms_and_clipped_heads_are_those_of_plain_pytorch(six):
    for a, b in zip(six[3], six[4], strict=True):
        assert (a.step, a.lr, a.gated) == (b.step, b.lr, b.gated)
        assert b.loss == pytest.approx(a.loss, abs=1e-6)
        assert b.grad_norm == pytest.approx(a.grad_norm, rel=1e-6)
        assert a.qk.clipped_heads == b.qk.clipped_heads > 0


def test_the_largest_logit_is_that_of_all_devices(six):
    for a, b in zip(six[3], six[4], strict=True):
        assert b.qk.maxima == pytest.approx(a.qk.maxima, abs=1e-5)


def test_parameters_and_slots_after_six_updates(six):
    both = six[0]
    assert largest(both.reference.weights(), both.deferred.weights()) <= 2e-6
    assert largest(both.reference.state().slots, both.deferred.state().slots) <= 1e-6


def test_everything_that_lives_from_step_to_step_is_on_every_device(six):
    engine = six[0].deferred
    living = [*engine.params.values(), *engine._grads(engine.params), *(t for ts in engine.slots.values() for t in ts)]
    assert {sharding(tensor) for tensor in living} == {"{replicated}"}


def test_the_embedding_is_one_tensor_with_the_output_head(six):
    model = six[0].deferred.model
    assert model.get_parameter("transformer.wte.weight") is model.get_parameter("lm_head.weight")
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in six[0].reference.model.parameters())


def test_evaluation_is_that_of_plain_pytorch_and_one_read(six):
    both = six[0]
    expected = both.reference.evaluate(both.validation())
    before = both.backend.transfers()
    found = both.deferred.evaluate(both.validation())
    assert both.backend.transfers() - before == 1
    # The weights differ by up to 2e-6 here, so a tie could fall the other way: none does on these tokens.
    assert (found.wrong_tokens, found.target_tokens) == (expected.wrong_tokens, expected.target_tokens)
    assert found.val_loss == pytest.approx(expected.val_loss, rel=1e-6)


def test_gradients_of_an_accumulated_update():
    both = on_xla("optimizer=adamw_nano")
    assert largest(both.reference.gradients(both.window(0)), both.deferred.gradients(both.window(0))) <= 1e-7


def test_rows_that_do_not_divide_by_the_devices():
    both, whole = on_xla("optimizer=adamw_nano"), on_xla("optimizer=adamw_nano").window(0)
    six_rows = Window(whole.inputs_NT[:6], whole.targets_NT[:6])
    assert largest(both.reference.gradients(six_rows), both.deferred.gradients(six_rows)) <= 1e-7


def test_adamw_does_not_compile_again_where_a_bias_correction_rounds_to_1():
    """sqrt(1 - .95^t) is 1 in fp32 from t = 325 on; `torch.optim.AdamW` compiles another graph there."""
    both = on_xla("optimizer=adamw_nano")
    steps = [1, 2, 323, 324, 325, 326, 16_628]
    found = [compiled(both.deferred, lambda s=s: both.deferred.update(s, both.window(0), 1.0)) for s in steps]
    assert found[1:] == [0] * 6


def test_scalars_that_are_0_1_or_equal_are_no_other_graph():
    both = on_xla("optimizer=sgd", "optimizer.lr=1.0", "optimizer.momentum=0.5")
    factors = [0.3, 0.0, 1.0, 0.5, 0.25]
    found = [compiled(both.deferred, lambda f=f: both.deferred.update(1, both.window(0), f)) for f in factors]
    assert found[1:] == [0] * 4


def test_a_poisoned_gradient_moves_no_bit():
    both = on_xla(*MUONCLIP)
    engine = both.deferred
    engine.update(1, both.window(0), 1.0)
    before = engine.state()
    engine._upload({group.name: group.rule.step_scalars(2, 1.0) for group in engine.groups})
    for inputs, targets in engine._micro_batches([both.window(1)]):
        engine._micro(inputs, targets, 2)
    with torch.no_grad():
        engine.params["transformer.wpe.weight"].grad[3].fill_(math.nan)
    engine._finish()
    engine._pending.append((2, {}))
    after = engine.state()
    assert [record.gated for record in engine.drain()] == [False, True]
    for kind in ("weights", "slots"):
        for name, array in getattr(before, kind).items():
            np.testing.assert_array_equal(getattr(after, kind)[name], array)


def test_every_product_is_computed_at_full_precision():
    """Forward, backward, QK maxima and Newton-Schulz; looking changes nothing."""
    both = on_xla(*MUONCLIP)
    before = both.deferred.weights()
    found = both.deferred.products(both.window(0))
    assert found.total() >= 60 and imprecise(found) == [] and set(found) == {("f32", "highest")}
    assert largest(before, both.deferred.weights()) == 0.0
    both.step(4)
    assert largest(both.reference.weights(), both.deferred.weights()) <= 2e-6
    assert [record.gated for record in both.deferred.drain()] == [False] * 4


def test_bf16_activations_keep_fp32_parameters_and_state():
    both = on_xla(*MUONCLIP, "precision=bf16")
    found = [compiled(both.deferred, lambda u=u: both.deferred.update(u + 1, both.window(u), 1.0)) for u in range(4)]
    assert found[1:] == [0, 0, 0]
    state = both.deferred.state()
    assert {array.dtype for array in (*state.weights.values(), *state.slots.values())} == {np.dtype("float32")}
    for u in range(4):
        both.reference.update(u + 1, both.window(u), 1.0)
    for a, b in zip(both.reference.drain(), both.deferred.drain(), strict=True):
        assert b.loss == pytest.approx(a.loss, abs=5e-3)


def test_a_state_of_another_device_continues():
    """From plain PyTorch to XLA and back: not the same bits, the same numbers."""
    both, other = on_xla(*MUONCLIP), on_xla(*MUONCLIP)
    both.reference.update(1, both.window(0), 1.0)
    other.deferred.load(both.reference.state())
    assert largest(other.deferred.weights(), both.reference.weights()) == 0.0
    other.deferred.update(2, other.window(1), 1.0)
    assert compiled(other.deferred, lambda: other.deferred.update(3, other.window(2), 1.0)) == 0
    back = on_xla(*MUONCLIP).reference
    back.load(other.deferred.state())
    assert largest(back.weights(), other.deferred.weights()) == 0.0


RUN = [
    "hardware=xla_cpu", "model=tiny", "model.n_layer=1", "schedule.num_steps=6", "schedule.warmup_steps=1",
    "schedule.tokens_per_step=256", "schedule.context_length=32", "data=synthetic", "data.train_tokens=8192",
    "data.val_tokens=1025", "evaluation.every=3", "evaluation.tokens=256", "checkpoint.every=2", "logging.log_every=2",
    "sample.tokens=0", "tracking.every=3", "tracking.backend=fast",
]  # fmt: skip


def gpt2exp(folder: Path, *arguments: str, status: int = 0) -> str:
    code = "from gpt2exp.main import main; import sys; main(sys.argv[1:])"
    environment = {name: value for name, value in os.environ.items() if name not in ("PJRT_DEVICE", "CPU_NUM_DEVICES")}
    call = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def results(run: Path) -> dict[str, bytes]:
    files = ("metrics.jsonl", "evaluations.jsonl", "tracking.jsonl", "checkpoints/step_000006/weights.safetensors",
             "checkpoints/step_000006/slots.safetensors", "spectra/step_000006.npz")  # fmt: skip
    return {name: (run / name).read_bytes() for name in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xla")
    gpt2exp(folder, *RUN, "hydra.run.dir=whole")
    return folder


def test_a_run_ends_complete_and_says_where(whole):
    record = json.loads((whole / "whole/run.json").read_text())
    assert record["status"] == "complete"
    assert record["execution"]["devices"] == 4 and record["execution"]["matmul_precision"] == "highest"
    assert record["execution"]["device"] == "xla_cpu" and "torch_xla" in record["execution"]


def test_a_resumed_run_is_the_same_to_the_bit_in_a_new_process(whole):
    gpt2exp(whole, *RUN, "hydra.run.dir=half", "stop_after_steps=3", status=4)
    gpt2exp(whole, "resume", "half")
    assert results(whole / "half") == results(whole / "whole")


KILLED = """
import os, signal, sys
from gpt2exp.train import checkpoint
plain = checkpoint.save
def once(folder, state, offsets):
    path = plain(folder, state, offsets)
    if state.step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return path
checkpoint.save = once
from gpt2exp.main import main
main(sys.argv[1:])
"""


def test_a_killed_run_is_the_same_to_the_bit(whole):
    call = [sys.executable, "-c", KILLED, *RUN, "hydra.run.dir=killed"]
    assert subprocess.run(call, cwd=whole, capture_output=True, check=False).returncode == -signal.SIGKILL
    gpt2exp(whole, "resume", "killed")
    assert results(whole / "killed") == results(whole / "whole")


def test_another_device_must_be_allowed_and_is_stamped(whole):
    gpt2exp(whole, *RUN, "hydra.run.dir=moved", "stop_after_steps=3", status=4)
    config = whole / "moved/config.yaml"
    config.write_text(config.read_text().replace("kind: xla_cpu\n  devices: 4", "kind: cpu\n  devices: 1"))
    said = gpt2exp(whole, "resume", "moved", status=2)
    assert "resume.allow_inexact=true" in said
    gpt2exp(whole, "resume", "moved", "resume.allow_inexact=true")
    record = json.loads((whole / "moved/run.json").read_text())
    assert record["status"] == "complete" and len(record["inexact"]) == 1
    losses = [
        [json.loads(line)["loss"] for line in (whole / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("moved", "whole")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_a_protocol_ends_in_its_report(tmp_path):
    said = gpt2exp(tmp_path, "-m", "protocol=six_run_nano", *RUN, "plan.target_val_loss=5.5")
    assert "wrote outputs/six_run_nano/report.html" in said
    statuses = Counter(json.loads(f.read_text())["status"] for f in tmp_path.rglob("run.json"))
    assert statuses == {"complete": 6}
    assert "xla_cpu" in (tmp_path / "outputs/six_run_nano/report.md").read_text()


@pytest.mark.parametrize(
    ("variable", "value"), [("XLA_USE_BF16", "1"), ("XLA_DOWNCAST_BF16", "1"), ("CPU_NUM_DEVICES", "2")]
)
def test_an_environment_that_would_change_the_arithmetic_is_refused(tmp_path, variable, value):
    call = [sys.executable, "-m", "gpt2exp", *RUN]
    environment = {name: v for name, v in os.environ.items() if name not in ("PJRT_DEVICE", "CPU_NUM_DEVICES")}
    environment[variable] = value
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 3 and done.stderr.startswith(f"gpt2exp: {variable}={value}")
    assert not list(tmp_path.iterdir())
