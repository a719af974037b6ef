"""`gpt2exp verify hardware=duckdb|datafusion`: step by step and table by table against PyTorch in float64."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("ddxdb")

from both import BIASED, HOSTS, SGD

from gpt2exp.engines.sql.engine import SqlEngine

pytestmark = pytest.mark.sql

ADAMW = ("optimizer=nanogpt_adamw",)
MUON = ("optimizer=muon",)
FORCED = ("optimizer=muonclip", "optimizer.qk_clip_threshold=0.002")
SHORT = ("schedule.num_steps=3", "hardware.micro_batch_size=2")
TABLES = ("wte", "wpe", "ln1_w", "w_qkv", "w_o", "ln2_w", "w_fc", "w_pr", "lnf_w")


def by_table(out: str) -> dict[tuple[str, str], list[float]]:
    """Shares by table and quantity, one a step."""
    section = out.split("the same by table and step")[1].split("\n\n")[0]
    lines = [line.split() for line in section.splitlines()[2:]]
    return {(table, quantity): [float(share) for share in shares] for table, quantity, *shares in lines}


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("optimizer", [SGD, ADAMW, MUON, FORCED], ids=lambda overrides: overrides[0])
def test_every_optimizer_is_within_tolerance_in_every_table(cli, host, optimizer):
    done = cli("verify", f"hardware={host}", *optimizer, *SHORT)
    assert done.status == 0, done.err
    assert re.search(r"all \d+ comparisons within tolerance\n$", done.out)
    shares = by_table(done.out)
    assert tuple(dict.fromkeys(table for table, _ in shares)) == TABLES
    assert {quantity for _, quantity in shares} >= {"gradients", "weights"}
    assert all(len(steps) == 3 for steps in shares.values())
    assert 0 < max(share for steps in shares.values() for share in steps) <= 1e-14


def test_biases_and_two_layers_have_their_own_tolerances(cli):
    done = cli("verify", "hardware=duckdb", *FORCED, *BIASED, *SHORT)
    assert done.status == 0, done.err
    assert "b_qkv  gradients" in done.out and "1e-10 of largest" in done.out


@pytest.mark.parametrize("host", HOSTS)
def test_one_weight_that_is_off_is_named(cli, host, monkeypatch):
    plain = SqlEngine.weights

    def off(engine):
        found = plain(engine)
        if engine.step >= 2:
            found["transformer.wpe.weight"][3, 5] *= 1 + 1e-11
        return found

    monkeypatch.setattr(SqlEngine, "weights", off)
    done = cli("verify", f"hardware={host}", *ADAMW, *SHORT)
    (line,) = done.problems
    assert done.status == 5 and "2 of 40 comparisons out of tolerance" in line, line
    assert re.search(r"weights after step \d \(transformer\.wpe\.weight\)", line)
    first, *later = by_table(done.out)["wpe", "weights"]
    assert first <= 1e-15 and min(later) > 1e-14
