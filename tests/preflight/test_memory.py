"""The memory formula against compiled graphs, what fits, and the page in docs."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from quick import quickly

from gpt2exp.assembly import slot_count
from gpt2exp.config import Config, Precision
from gpt2exp.preflight import memory
from gpt2exp.preflight.memory import GIB
from gpt2exp.projection import micro_batch_size

DOCS = Path(__file__).parents[2] / "docs"


def compose(*overrides: str) -> Config:
    return quickly("preset=gpt2_fineweb", *overrides)


def tpu(*overrides: str) -> Config:
    return compose("hardware=tpu_v5e_8", *overrides)


@pytest.mark.parametrize(
    ("precision", "rows", "compiled"),
    [("fp32", 1, 1.94), ("fp32", 4, 8.16), ("fp32", 8, 16.3), ("bf16", 1, 2.62), ("bf16", 4, 10.4)],
)
def test_the_formula_gives_what_gpt2_compiled_to(precision, rows, compiled):
    cfg = compose()
    found = memory.xla_estimate(cfg.model, cfg.optimizer, Precision[precision], 1024, rows).temporary / GIB
    assert found == pytest.approx(compiled, rel=0.03)


@pytest.mark.parametrize("graph", memory.COMPILED, ids=str)
def test_the_formula_never_promises_more_room_than_a_graph_left(graph):
    cfg = compose(f"model={graph.model}")
    found = memory.xla_estimate(cfg.model, cfg.optimizer, graph.precision, 1024, graph.rows).temporary / GIB
    assert 0.998 <= found / graph.gib <= 1.28


@pytest.mark.parametrize(("optimizer", "gib"), [("adamw", 1.90), ("muonclip", 1.59)])
def test_what_stays_in_memory_are_weights_gradients_state_and_masks(optimizer, gib):
    cfg = compose(f"optimizer={optimizer}")
    assert memory.resident_bytes(cfg.model, cfg.optimizer) / GIB == pytest.approx(gib, rel=0.01)


def test_the_reference_gpt_has_no_masks():
    upstream, ours = compose(), compose("model.source=reference")
    difference = memory.resident_bytes(upstream.model, upstream.optimizer) - memory.resident_bytes(
        ours.model, ours.optimizer
    )
    assert difference == 12 * 1024 * 1024 * 4


def test_a_tpu_takes_four_rows_of_gpt2_and_two_of_medium():
    assert memory.micro_batch_size(tpu()) == 4
    assert memory.micro_batch_size(tpu("precision=fp32")) == 4
    assert memory.micro_batch_size(tpu("model=gpt2_medium", "precision=fp32")) == 2


def test_a_configured_micro_batch_is_kept_whether_it_fits_or_not():
    cfg = tpu("hardware.micro_batch_size=8")
    assert memory.micro_batch_size(cfg) == 8
    assert memory.estimate(cfg, 8).total > memory.limit_bytes(cfg)


def test_the_micro_batch_divides_the_rows_of_a_device():
    cfg = tpu("schedule.tokens_per_step=24576", "model.n_layer=2")
    assert 24576 // 1024 // 8 == 3 and memory.micro_batch_size(cfg) in (1, 3)


def test_virtual_devices_share_the_machine(monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"total": 64 * GIB}))
    assert memory.limit_bytes(compose("hardware=xla_cpu")) == 64 * GIB / 2 / 4


def test_on_a_cpu_the_choice_is_the_runs_own():
    cfg = quickly()
    assert memory.micro_batch_size(cfg) == micro_batch_size(cfg, psutil.virtual_memory().total, slot_count(cfg))


def test_the_page_in_docs_is_what_the_command_prints(cli):
    printed = cli("preflight", "--memory-table")
    assert printed.status == 0
    assert (DOCS / "memory_16GiB.md").read_text(encoding="utf-8") == printed.out
    assert "| gpt2 | adamw | 1.90 | **3.8** |" in printed.out
