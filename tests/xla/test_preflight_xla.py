"""`gpt2exp preflight hardware=xla_cpu` on the real torch_xla: four virtual devices."""

from __future__ import annotations

import json

import pytest
from quick import quickly

from gpt2exp.engines.torch.backends.xla import XlaBackend
from gpt2exp.errors import RefusedError
from gpt2exp.preflight import trial

pytestmark = pytest.mark.xla
ACCUMULATED = ("hardware=xla_cpu", "hardware.micro_batch_size=1", "schedule.tokens_per_step=512")
"""A step of 16 rows in 4 micro-batches over 4 devices."""


@pytest.fixture
def try_out(monkeypatch, tmp_path, tiny_run):
    monkeypatch.setenv("GPT2EXP_CACHE", str(tmp_path))
    return lambda *overrides: json.loads(trial.preflight(quickly(*tiny_run, *ACCUMULATED, *overrides)).read_text())


@pytest.mark.parametrize(("precision", "limit"), [("fp32", 5e-6), ("bf16", 3e-2)])
def test_it_passes_and_the_stamp_says_on_what(try_out, precision, limit):
    found = try_out(f"precision={precision}", "optimizer=muonclip_nano")
    execution, measured = found["execution"], found["measured"]
    assert (execution["device"], execution["devices"]) == ("xla_cpu", 4)
    assert execution["matmul_precision"] == "highest" and execution["torch_xla"] == found["versions"]["torch_xla"]
    assert measured["update_compilations"][1:] == [0, 0]
    assert 0 < measured["gradient_distance"] < limit


def test_the_update_at_the_real_batch_is_what_compiles(try_out):
    """At a context that no other check has used, the micro-batch's graph is compiled by the first update."""
    longer = ("model.block_size=256", "schedule.context_length=256", "schedule.tokens_per_step=2048")
    found = try_out("optimizer=sgd", "data.train_tokens=16384", *longer)
    first, *later = found["measured"]["update_compilations"]
    assert first > 0 and later == [0, 0]


def test_a_move_that_unties_is_refused(try_out, monkeypatch, tmp_path):
    monkeypatch.setattr(XlaBackend, "place", lambda backend, model: model.to(backend.device))
    with pytest.raises(RefusedError, match="preflight: device: AssertionError: untied"):
        try_out()
    assert not list(tmp_path.rglob("*.json"))
