"""What else could explain a difference between arms, read from configurations and rows, never from arms' names."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
from run_dirs import ADAMW, MUONCLIP, config, write_run

from gpt2exp.config import shipped
from gpt2exp.optim.base import TensorInfo
from gpt2exp.optim.registry import optimizers
from gpt2exp.report.confounds import EMBEDDINGS, HIDDEN, VECTORS, arms_of, confounds
from gpt2exp.report.records import read_identified

OTHER = "adamw_matched_aux"


def sentences(folder, *runs, plan=None):
    """Of runs given as (arm, *overrides), all of seed 1."""
    paths = [write_run(folder / str(i), config(arm, 1, *more), status="stopped") for i, (arm, *more) in enumerate(runs)]
    return confounds([read_identified(path) for path in paths], plan)


def one(found, start):
    (line,) = [line for line in found if line.startswith(start)]
    return line


def test_learning_rate_and_decay_of_the_flagship_arms(tmp_path):
    found = sentences(tmp_path, ("muonclip",), ("adamw",))
    assert one(found, "Peak learning rate").startswith(
        "Peak learning rate on the hidden matrices: muonclip 0.02, adamw 0.0006. The rules scale their updates "
        "differently (muonclip scale=rms)"
    )
    assert one(found, "Weight decay on the hidden matrices") == (
        "Weight decay on the hidden matrices differs, as learning rate x weight_decay at the peak: "
        "muonclip 0.002 (0.02 x 0.1), adamw 6e-05 (0.0006 x 0.1), a ratio of 33.3."
    )
    assert one(found, "muonclip and adamw differ on").startswith(
        "muonclip and adamw differ on the hidden matrices only"
    )
    assert not any("embeddings" in line for line in found)


OPTIONS = sorted(file.stem for file in shipped("conf").glob("optimizer/*.yaml"))


@pytest.mark.parametrize(("first", "second"), list(combinations(OPTIONS, 2)))
def test_any_two_shipped_optimizers_can_be_compared(tmp_path, first, second):
    """muonclip_nano beside sgd once ended a finished protocol in a traceback: an auxiliary AdamW has no scale."""
    found = sentences(tmp_path, (first,), (second,))
    assert any(first in line and second in line for line in found)
    assert any(line.startswith("Gradient clip") for line in found)


def test_another_rule_for_the_other_tensors_is_said_key_by_key(tmp_path):
    found = sentences(tmp_path, ("muonclip", "optimizer.aux.lr=0.001"), (OTHER,))
    line = one(found, f"muonclip and {OTHER} differ on more than the hidden matrices")
    assert f"lr of the embeddings: 0.001 in muonclip, 0.0006 in {OTHER}" in line
    assert f"weight_decay of the embeddings: 0.1 in muonclip, 0.0 in {OTHER}" in line
    assert f"lr of the biases and norms: 0.001 in muonclip, 0.0006 in {OTHER}" in line
    assert one(found, "Weight decay on the embeddings").endswith(f"muonclip 0.0001 (0.001 x 0.1), {OTHER} none.")


def test_one_rule_with_other_settings_lists_them(tmp_path):
    found = sentences(tmp_path, ("adamw",), (OTHER,))
    assert f"adamw and {OTHER} are one rule with other settings: decay_scope matrices and hidden." in found
    assert not any(line.startswith("Peak learning rate") for line in found)


def test_clips_are_compared_and_counted(tmp_path):
    found = sentences(tmp_path, (MUONCLIP, "optimizer.clip_scope=aux_only"), (ADAMW, "optimizer.max_grad_norm=0"))
    line = f"Gradient clips differ: {MUONCLIP} norm 1 over aux_only gradients, {ADAMW} off."
    assert line in found
    assert one(found, "The gradient clip acted") == (
        f"The gradient clip acted in 100 % of the updates of {MUONCLIP}, 100 % of the updates of {ADAMW}."
    )
    assert one(found, f"{MUONCLIP} and {ADAMW} differ").endswith(
        "on more than the hidden matrices (the gradient clip)."
    )


def test_whether_the_qk_clip_acted_comes_from_the_rows(tmp_path):
    a, b = write_run(tmp_path / "a", config(MUONCLIP, 1)), write_run(tmp_path / "b", config(ADAMW, 1))
    never = confounds([read_identified(a), read_identified(b)])
    assert one(never, "The QK clip") == (
        f"The QK clip of {MUONCLIP} (threshold 100) never acted, so nothing here is due to it."
    )
    rows = [json.loads(line) for line in (a / "metrics.jsonl").read_text().splitlines()]
    rows[2]["qk_clipped"] = 3
    (a / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    acted = confounds([read_identified(a), read_identified(b)])
    assert one(acted, "The QK clip") == f"The QK clip of {MUONCLIP} (threshold 100) acted 3 times on a head."
    assert "the QK clip scales query and key biases too" in one(acted, f"{MUONCLIP} and {ADAMW} differ")


def test_what_is_equal_is_said_and_what_is_not(tmp_path):
    assert (
        "Equal in every arm: 128 tokens a step, 4 steps, warm-up 1, cosine decay to 0 of the peak, precision fp32."
        in sentences(tmp_path / "1", (MUONCLIP,), (ADAMW,))
    )
    found = sentences(tmp_path / "2", (MUONCLIP,), (ADAMW, "schedule.warmup_steps=2", "precision=fp64"))
    assert "Budgets or schedules differ between the runs." in found
    assert "Precision differs: fp32, fp64." in found


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({}, ["Tuning budgets are not declared"]),
        (
            {"tuning_trials": [5, 5], "tuning_seeds": [1], "seeds": [42]},
            ["Equal tuning budgets: 5 trials an arm at tuning seed 1."],
        ),
        (
            {"tuning_trials": [9, 3], "tuning_seeds": [], "arms": ["a", "b"]},
            ["Tuning budgets differ: a 9, b 3 trials, seeds not declared"],
        ),
        (
            {"tuning_trials": [5, 5], "tuning_seeds": [41, 42], "seeds": [42, 43]},
            ["Equal tuning budgets: 5 trials an arm at tuning seeds 41, 42.", "Seed 42 chose the settings"],
        ),
    ],
)
def test_tuning_budgets_come_from_the_plan(tmp_path, declared, expected):
    found = sentences(tmp_path, (MUONCLIP,), (ADAMW,), plan={"declared": declared})
    for start in expected:
        assert one(found, start)


def test_rounding_is_a_floor_for_small_models_only(tmp_path):
    assert any("execution rounding" in line for line in sentences(tmp_path / "1", (MUONCLIP,)))
    assert sentences(tmp_path / "2", (MUONCLIP, "model.n_layer=12", "model.n_head=12", "model.n_embd=768")) == ()


def test_arms_with_one_label_are_told_apart(tmp_path):
    found = sentences(tmp_path, (ADAMW,), (ADAMW, "optimizer.lr=0.004"))
    assert one(found, "Peak learning rate on the hidden matrices") == (
        "Peak learning rate on the hidden matrices: 0 0.002, 1 0.004."
    )


@pytest.mark.parametrize("arm", ["muonclip", "muon", "adamw", OTHER, "sgd", "muonclip_nano"])
def test_decay_and_rate_of_each_kind_of_tensor_are_what_the_optimizer_does(tmp_path, arm):
    """The reading of a recipe against the parameter groups that training makes of it."""
    cfg = config(arm, 1)
    (read,) = arms_of([read_identified(write_run(tmp_path / "r", cfg))])
    tensors = {
        HIDDEN: TensorInfo("transformer.h.0.mlp.c_fc.weight", (4, 2)),
        EMBEDDINGS: TensorInfo("transformer.wte.weight", (4, 2)),
        VECTORS: TensorInfo("transformer.h.0.ln_1.weight", (2,)),
    }
    groups = optimizers()[cfg.optimizer.kind].groups(cfg.optimizer, 1)
    for kind, tensor in tensors.items():
        owner = next(group.rule for group in groups if group.owns(tensor))
        rule = getattr(owner, "recipe", owner)
        assert read.decay(kind) == rule.weight_decay
        assert read.section(kind)["lr"] == rule.lr
