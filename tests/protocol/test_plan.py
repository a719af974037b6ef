"""All runs are composed and compared before the first one starts; a plan never changes under its runs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from quick import quickly

from gpt2exp.config import Config, Design, ModelSource, PlanConfig, Precision
from gpt2exp.errors import ConfigError, RefusedError, StorageError
from gpt2exp.protocol.plan import make_plan, publish, read_plan, refuse_if_started

DECLARED = PlanConfig(seeds=(1, 2), arms=("muonclip_nano", "adamw_nano"))


def planned(declared=DECLARED, seeds=(1, 2), arms=("muonclip_nano", "adamw_nano")) -> list[tuple[str, Config]]:
    return [
        (f"seed={seed}/{arm}", replace(quickly(f"optimizer={arm}", f"seed={seed}"), plan=declared))
        for seed in seeds
        for arm in arms
    ]


def problems(runs) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        make_plan("p", runs)
    return refused.value.problems


def test_every_seed_has_every_arm_in_the_order_of_the_runs():
    plan = make_plan("p", planned())
    assert [(run.seed, run.arm) for run in plan.runs] == [
        (1, "muonclip_nano"), (1, "adamw_nano"), (2, "muonclip_nano"), (2, "adamw_nano")
    ]  # fmt: skip
    assert plan.tokens_per_run == 200 * 4096
    assert len({run.digest for run in plan.runs}) == 4


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (planned(seeds=(1,)), "p: seed 1, but plan.seeds=[1,2]"),
        (planned(seeds=(1, 2, 3)), "p: seed 1,2,3, but plan.seeds=[1,2]"),
        (planned(arms=("adamw_nano",)), "p: arm adamw_nano, but plan.arms=[muonclip_nano,adamw_nano]"),
        (planned()[:-1], "seed=2 lacks arm adamw_nano: every seed needs every arm"),
        ([*planned(), planned()[0]], "5 runs, the plan declares 4"),
    ],
)
def test_runs_that_are_not_what_was_declared_are_refused(runs, said):
    assert said in problems(runs)[0]


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("schedule.num_steps=100", "schedule.num_steps: 200 in seed=1/muonclip_nano, 100 in seed=2/adamw_nano"),
        ("hardware.threads=2", "hardware.threads"),
        ("data.val_percent=5", "data.val_percent"),
        ("model.n_layer=2", "model.n_layer"),
        ("precision=fp64", "precision"),
        ("evaluation.tokens=1280", "evaluation.tokens"),
        ("tracking.backend=fast", "tracking.backend"),
        ("checkpoint.every=7", "checkpoint.every"),
    ],
)
def test_arms_that_differ_in_more_than_the_optimizer_are_refused(override, key):
    other = replace(quickly("optimizer=adamw_nano", "seed=2", override), plan=DECLARED)
    found = problems([*planned()[:-1], ("seed=2/adamw_nano", other)])
    assert len(found) == 1 and key in found[0] and "arms may differ in the optimizer only" in found[0]


def test_the_models_source_may_be_demanded():
    assert problems(planned(replace(DECLARED, model_source=ModelSource.llmc))) == [
        "protocol=p: model.source=reference: the plan demands llmc (plan.model_source)"
    ]


def test_a_sweep_may_repeat_an_arm():
    declared = replace(DECLARED, design=Design.sweep, seeds=(1,))
    runs = [
        (f"lr={lr}", replace(quickly("optimizer=adamw_nano", "seed=1", f"optimizer.lr={lr}"), plan=declared))
        for lr in (1e-3, 2e-3)
    ]
    runs += [("m", replace(quickly("optimizer=muonclip_nano", "seed=1"), plan=declared))]
    assert len(make_plan("p", runs).runs) == 3


def test_the_fingerprint_holds_the_plan_and_every_run():
    plan = make_plan("p", planned())
    assert make_plan("p", planned()).fingerprint == plan.fingerprint
    changed = [
        make_plan("q", planned()),
        make_plan("p", planned(replace(DECLARED, primary="final_token_error"))),
        make_plan("p", planned()[::-1]),
        make_plan("p", [(folder, replace(cfg, precision=Precision.fp64)) for folder, cfg in planned()]),
    ]  # fmt: skip
    assert len({plan.fingerprint, *(other.fingerprint for other in changed)}) == 5


def test_a_published_plan_is_read_back_and_stays(tmp_path):
    plan = make_plan("p", planned())
    publish(plan, tmp_path)
    before = (tmp_path / "protocol.json").read_bytes()
    publish(plan, tmp_path)
    assert (tmp_path / "protocol.json").read_bytes() == before
    assert read_plan(tmp_path) == plan.record


def test_another_plan_in_the_same_directory_is_refused_and_named(tmp_path):
    publish(make_plan("p", planned()), tmp_path)
    other = make_plan("p", planned(replace(DECLARED, primary="final_token_error")))
    with pytest.raises(ConfigError, match=r"another plan \(differs in declared.primary\).*hydra.sweep.dir"):
        publish(other, tmp_path)
    longer = [(folder, replace(cfg, schedule=replace(cfg.schedule, num_steps=300))) for folder, cfg in planned()]
    with pytest.raises(ConfigError, match=r"runs.seed=1/adamw_nano.digest"):
        publish(make_plan("p", longer), tmp_path)


@pytest.mark.parametrize("edit", [lambda r: {**r, "protocol": "q"}, lambda r: {k: r[k] for k in r if k != "runs"}])
def test_a_plan_that_was_edited_is_refused(tmp_path, edit):
    publish(make_plan("p", planned()), tmp_path)
    file = tmp_path / "protocol.json"
    file.write_text(json.dumps(edit(json.loads(file.read_text()))))
    with pytest.raises(StorageError, match="edited after planning"):
        read_plan(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{"])
def test_a_damaged_plan_is_named(tmp_path, text):
    (tmp_path / "protocol.json").write_text(text)
    with pytest.raises(StorageError, match=r"protocol\.json: damaged"):
        read_plan(tmp_path)


def test_going_on_must_be_asked_for(tmp_path):
    plan = make_plan("p", planned())
    refuse_if_started(plan, tmp_path)
    for folder, status in (("seed=1/muonclip_nano", "complete"), ("seed=1/adamw_nano", "stopped")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "run.json").write_text(json.dumps({"status": status}))
    with pytest.raises(RefusedError, match=r"1 of 4 runs of this plan are complete, 1 were begun; resume.enabled=true"):
        refuse_if_started(plan, tmp_path)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("plan.primary=loss", "plan.primary=loss: unknown endpoint"),
        ("plan.secondary=[steps_to_target]", "plan.secondary=steps_to_target: needs plan.target_val_loss"),
        ("plan.price_per_hour=0", "plan.price_per_hour=0: must be greater than 0"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(override, said):
    with pytest.raises(ConfigError) as refused:
        quickly(override)
    assert said in str(refused.value)


def test_seeds_that_chose_the_rate_may_not_judge_it():
    with pytest.raises(ConfigError, match="seed 2 is reported too"):
        quickly("plan.seeds=[1,2]", "plan.tuning_seeds=[2,3]")
