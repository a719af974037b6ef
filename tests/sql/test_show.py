"""The statements as people read them."""

from __future__ import annotations

import pytest
from quick import quickly

pytest.importorskip("ddxdb")

from both import ADAMW, MINI, MUONCLIP, SYNTHETIC

from gpt2exp.engines.sql.show import statements

pytestmark = pytest.mark.sql


def shown(*overrides):
    return statements(quickly(*MINI, *SYNTHETIC, *overrides))


def test_statements_are_in_the_order_of_their_reading():
    """Everything but the weights, the batch and the state from the step before is filled before it is read."""
    for overrides in (ADAMW, (*MUONCLIP, "model.bias=true")):
        filled = {"batch", "schedule"}
        found = shown(*overrides)
        names = {s.name for s in found}
        for s in found:
            read = {word.strip("(),;") for line in s.sql.splitlines() for word in line.split()} & names
            later = {name for name in read - filled if not name.endswith("_state") and name != s.name}
            weights = {"wte", "wpe", "ln1_w", "ln1_b", "w_qkv", "b_qkv", "w_o", "b_o", "ln2_w", "ln2_b", "w_fc",
                       "b_fc", "w_pr", "b_pr", "lnf_w", "lnf_b"}  # fmt: skip
            assert later <= weights, f"{s.name} reads {later - weights} before it is filled"
            filled.add(s.name)


def test_each_table_of_weights_gets_a_gradient_moments_and_one_update():
    found = [s.name for s in shown(*ADAMW)]
    for table in ("wte", "wpe", "ln1_w", "w_qkv", "w_o", "ln2_w", "w_fc", "w_pr", "lnf_w"):
        assert [found.count(name) for name in (f"{table}_grad", f"{table}_state", table)] == [1, 1, 1]
    assert found[0] == "x0" and found[-1] == "evaluation" and found.index("loss") < found.index("wte_grad")
    assert all(s.comment and len(s.sql) > 20 for s in shown(*ADAMW))


def test_logits_are_watched_and_clipped_in_sql():
    found = shown(*MUONCLIP)
    text = {s.name: s.sql for s in found}
    assert "MAX(x)" in text["qk_max"]
    clip = [s for s in found if s.name == "w_qkv"][-1]
    assert "GREATEST(q.x, 0.002e0)" in clip.sql and clip.comment.startswith("QK clip")
