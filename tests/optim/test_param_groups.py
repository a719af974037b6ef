"""Every tensor has exactly one owner, and every rule owns something."""

from __future__ import annotations

import pytest

from gpt2exp.errors import ConfigError
from gpt2exp.optim.adamw import AdamWRule
from gpt2exp.optim.base import GroupRule, TensorInfo
from gpt2exp.optim.param_groups import DecayScope, assign, decay_groups

RULE = AdamWRule(1e-3, (0.9, 0.95), 1e-8, 0.1)
TENSORS = [
    TensorInfo("transformer.wte.weight", (9, 4)),
    TensorInfo("transformer.h.0.ln_1.weight", (4,)),
    TensorInfo("transformer.h.0.attn.c_attn.weight", (12, 4)),
]


def names(groups):
    return {group.name: [tensor.name for tensor in group.tensors] for group in groups}


def test_the_first_match_wins_and_order_is_the_models():
    rules = (
        GroupRule("hidden", lambda t: t.hidden_matrix, RULE),
        GroupRule("rest", lambda t: True, RULE),
    )
    assert names(assign(rules, TENSORS)) == {
        "hidden": ["transformer.h.0.attn.c_attn.weight"],
        "rest": ["transformer.wte.weight", "transformer.h.0.ln_1.weight"],
    }


def test_orphans_and_idle_rules_are_named():
    rules = (
        GroupRule("hidden", lambda t: t.hidden_matrix, RULE),
        GroupRule("idle", lambda t: "nothing" in t.name, RULE),
    )
    with pytest.raises(ConfigError) as caught:
        assign(rules, TENSORS)
    assert caught.value.problems == [
        "no parameter group owns transformer.wte.weight, transformer.h.0.ln_1.weight",
        "parameter group 'idle' matches no tensor",
    ]


@pytest.mark.parametrize(
    ("scope", "decayed"),
    [
        (DecayScope.matrices, ["transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"]),
        (DecayScope.hidden, ["transformer.h.0.attn.c_attn.weight"]),
    ],
)
def test_decay_scopes(scope, decayed):
    groups = assign(decay_groups(scope, 0.1, lambda wd: AdamWRule(1e-3, (0.9, 0.95), 1e-8, wd)), TENSORS)
    assert names(groups)["decay"] == decayed
    assert [group.rule.weight_decay for group in groups] == [0.1, 0.0]


def test_no_decay_is_one_group():
    groups = assign(decay_groups(DecayScope.none, 0.1, lambda wd: RULE), TENSORS)
    assert names(groups) == {"no_decay": [tensor.name for tensor in TENSORS]}
