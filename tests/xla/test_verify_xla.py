"""`gpt2exp verify hardware=xla_cpu` on the real torch_xla: four virtual devices against plain PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpt2exp.verbs import verify
from gpt2exp.verification import engine_parity

pytestmark = pytest.mark.xla


@pytest.fixture(scope="module")
def parity():
    """Six steps of MuonClip with heads clipped."""
    return engine_parity.verify_engine(verify.configuration(["hardware=xla_cpu"]))


def largest(parity, quantity):
    return max(row.absolute for row in parity.rows if row.quantity == quantity)


def test_everything_is_within_tolerance(parity):
    assert [str(row) for row in parity.failures] == []
    assert parity.other["device"] == "xla_cpu" and parity.other["devices"] == 4
    assert parity.reference["device"] == "cpu" and parity.reference["devices"] == 1


def test_what_was_promised_of_four_devices_holds(parity):
    assert largest(parity, "initial weights") == 0
    assert largest(parity, "loss") <= 1e-6
    assert largest(parity, "gradients") <= 1e-7
    assert largest(parity, "weights") <= 2e-6
    assert largest(parity, "QK maximum") <= 1e-5
    assert largest(parity, "clipped heads") == largest(parity, "wrong tokens") == 0
    assert all(record.qk.clipped_heads > 0 for record in parity.records)


def test_nothing_is_compiled_after_the_first_step(parity):
    """Rate 0 in the third, rate equal to weight decay in the second and fifth."""
    assert parity.compiles[1:] == (0, 0, 0, 0, 0)


def test_an_xla_engine_that_is_wrong_is_found(monkeypatch):
    """Half a learning rate in the second step: not in what it reports, in what it does."""
    from gpt2exp.engines.torch.deferred import DeferredEngine

    upload = DeferredEngine._upload

    def halved(self, scalars):
        upload(self, {group: {**values, "lr": values["lr"] * 0.5} for group, values in scalars.items()})

    monkeypatch.setattr(DeferredEngine, "_upload", halved)
    parity = engine_parity.verify_engine(verify.configuration(["hardware=xla_cpu"]), steps=2)
    assert {row.quantity for row in parity.failures} >= {"weights"}
    assert "weights" in {row.quantity for row in parity.failures if row.step == 1}


def test_the_command_prints_and_passes(cli):
    done = cli("verify", "hardware=xla_cpu", "schedule.num_steps=2")
    assert done.status == 0, done.err
    assert "torch_xla" in done.out and "matmul_precision highest" in done.out
    assert done.out.endswith("comparisons within tolerance\n")


def test_bf16_is_not_verified(cli):
    done = cli("verify", "hardware=xla_cpu", "precision=bf16")
    assert done.status == 2 and "verify with precision=fp32" in done.problems[0]


def test_the_devices_of_a_process_are_fixed(cli):
    done = cli("verify", "hardware=xla_cpu", "hardware.devices=8")
    assert done.status == 3 and "CPU_NUM_DEVICES" in done.problems[0]


def test_eight_devices_in_a_process_of_their_own(tmp_path):
    """The command as a user types it; the number of virtual devices is fixed when torch_xla is imported."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PJRT_DEVICE", "CPU_NUM_DEVICES")}
    call = [sys.executable, "-m", "gpt2exp", "verify", "hardware=xla_cpu", "hardware.devices=8"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "comparisons within tolerance" in done.stdout.splitlines()[-1]
