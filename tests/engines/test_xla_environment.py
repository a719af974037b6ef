"""What can be refused before torch_xla is imported, and what its graphs' text says about precision."""

from __future__ import annotations

import importlib.util

import pytest

from gpt2exp.engines.torch.backends import xla
from gpt2exp.engines.torch.hlo import imprecise, product_precisions
from gpt2exp.errors import RefusedError

HLO = """
  %dot.7 = f32[512,192]{1,0} dot(f32[512,64]{1,0} %a, f32[64,192]{1,0} %b), lhs_contracting_dims={1}, operand_precision={highest,highest}
  %dot.8 = f32[8,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %dot.9 = bf16[8,4]{1,0} dot(bf16[8,2]{1,0} %a, bf16[2,4]{1,0} %b), operand_precision={highest,highest}
  %dot.10 = f32[8,4]{1,0} dot(%a, %b), operand_precision={highest,high}, metadata={op_name="dot(x)"}
  %add.3 = f32[8,4]{1,0} add(%dot.7, %dot.8)
"""  # noqa: E501


@pytest.fixture
def environment(monkeypatch):
    """As if torch_xla were installed, and nothing set."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    for name in (*xla.DOWNCASTS, "PJRT_DEVICE", "CPU_NUM_DEVICES", "TPU_WORKER_HOSTNAMES", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_what_it_reads_at_import_is_set(environment):
    import os

    xla.check_environment("xla_cpu", 4)
    assert (os.environ["PJRT_DEVICE"], os.environ["CPU_NUM_DEVICES"]) == ("CPU", "4")


def test_a_tpu_has_as_many_chips_as_it_has(environment):
    import os

    xla.check_environment("tpu", 8)
    assert os.environ["PJRT_DEVICE"] == "TPU" and "CPU_NUM_DEVICES" not in os.environ


@pytest.mark.parametrize(
    ("kind", "name", "value", "said"),
    [
        ("xla_cpu", "XLA_USE_BF16", "1", "XLA_USE_BF16=1: would turn fp32 into bf16 unseen; unset it"),
        ("tpu", "XLA_DOWNCAST_BF16", "true", "XLA_DOWNCAST_BF16=true"),
        ("xla_cpu", "PJRT_DEVICE", "TPU", "PJRT_DEVICE=TPU: hardware.kind=xla_cpu .* needs PJRT_DEVICE=CPU"),
        ("tpu", "PJRT_DEVICE", "CPU", "PJRT_DEVICE=CPU: hardware.kind=tpu"),
        ("xla_cpu", "CPU_NUM_DEVICES", "2", "CPU_NUM_DEVICES=2: .* hardware.devices=4 needs"),
        ("tpu", "TPU_WORKER_HOSTNAMES", "a,b", "TPU slice of 2 hosts: only one host is supported"),
    ],
)
def test_an_environment_that_is_another_is_refused(environment, kind, name, value, said):
    environment.setenv(name, value)
    with pytest.raises(RefusedError, match=said):
        xla.check_environment(kind, 4)


@pytest.mark.parametrize(
    ("name", "value"), [("XLA_USE_BF16", "0"), ("XLA_USE_BF16", ""), ("TPU_WORKER_HOSTNAMES", "one")]
)
def test_what_changes_nothing_is_accepted(environment, name, value):
    environment.setenv(name, value)
    xla.check_environment("tpu", 8)


@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is not None, reason="torch_xla is installed here")
@pytest.mark.parametrize("hardware", ["xla_cpu", "tpu_v5e_8"])
def test_without_torch_xla_a_run_is_refused_and_leaves_nothing(cli, tiny_run, tmp_path, hardware):
    overrides = [text for text in tiny_run if not text.startswith("schedule.tokens_per_step")]
    done = cli(f"hardware={hardware}", *overrides, "schedule.tokens_per_step=256", "hardware.preflight=off")
    assert done.status == 3 and len(done.problems) == 1
    assert "torch_xla is not installed; it needs an environment of its own" in done.problems[0]
    assert list(tmp_path.iterdir()) == []


def test_precision_is_read_from_every_product():
    found = product_precisions(HLO)
    assert found == {("f32", "highest"): 1, ("f32", "default"): 1, ("bf16", "highest"): 1, ("f32", "high"): 1}
    assert sorted(imprecise(found)) == ["f32 at default", "f32 at high"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("precision=fp64", "precision=fp64: hardware=xla_cpu offers fp32, bf16"),
        ("hardware.devices=3", "hardware.micro_batch_size=1 x hardware.devices=3: must divide the"),
        ("hardware.orthogonalizer=eigh", "hardware.orthogonalizer=eigh: hardware=xla_cpu"),
    ],
)
def test_what_the_device_cannot_do_is_refused(override, said):
    from quick import quickly

    from gpt2exp.errors import ConfigError

    with pytest.raises(ConfigError) as refused:
        quickly("hardware=xla_cpu", override)
    assert said in str(refused.value)
