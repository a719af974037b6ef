"""What keeps runs from being pooled is named by tier and key, with the runs by value."""

from __future__ import annotations

from dataclasses import replace

from run_dirs import ADAMW, EXECUTION, INPUTS, MUONCLIP, config, write_run

from gpt2exp.report.pooling import describe, differences, key_of, names_of, noted
from gpt2exp.report.records import read_identified


def runs(folder, *changes, arm=MUONCLIP):
    """One run for each (overrides, other arguments of write_run), of seeds 1, 2, ..."""
    return [
        read_identified(write_run(folder / f"r{seed}", config(arm, seed, *overrides), status="stopped", **changed))
        for seed, (overrides, changed) in enumerate(changes, 1)
    ]


def test_seeds_and_optimizers_are_what_may_differ(tmp_path):
    a = write_run(tmp_path / "a", config(MUONCLIP, 1))
    b = write_run(tmp_path / "b", config(ADAMW, 2))
    assert differences([read_identified(a), read_identified(b)]) == ()


def test_each_tier_is_named_with_the_runs_by_value(tmp_path):
    found = differences(
        runs(
            tmp_path,
            ((), {}),
            (("schedule.num_steps=8", "evaluation.every=4"), {}),
            ((), {"inputs": replace(INPUTS, corpus_digest="d4" * 32), "execution": {**EXECUTION, "engine": "sql"}}),
        )
    )
    assert [key_of(difference) for difference in found] == [
        "training.data.corpus",
        "training.schedule.num_steps",
        "measurement.evaluation.every",
        "measurement.split",
        "execution.engine",
    ]
    names = [f"{MUONCLIP} seed {seed}" for seed in (1, 2, 3)]
    assert found[1].values == {"4": (names[0], names[2]), "8": (names[1],)}
    assert describe(found[4]) == f"execution.engine (torch: {names[0]}, {names[1]}; sql: {names[2]})"


def test_torch_must_agree_to_the_minor_version(tmp_path):
    versions = ["2.13.0+cpu", "2.13.1", "2.14.0"]
    three = runs(tmp_path, *(((), {"execution": {**EXECUTION, "torch": version}}) for version in versions))
    assert differences(three[:2]) == ()
    assert [key_of(difference) for difference in noted(three[:2])] == ["execution.torch"]
    (found,) = differences(three)
    assert found.values == {"2.13": tuple(names_of(three)[:2]), "2.14": (names_of(three)[2],)}
    assert noted(three) == ()


def test_devices_threads_and_micro_batch_are_only_noted(tmp_path):
    other = {**EXECUTION, "devices": 2, "threads": 4, "micro_batch_size": 2}
    two = runs(tmp_path, ((), {}), ((), {"execution": other}))
    assert differences(two) == ()
    assert [difference.key for difference in noted(two)] == ["devices", "micro_batch_size", "threads"]


def test_one_label_with_two_settings_is_two_arms(tmp_path):
    two = runs(tmp_path, ((), {}), (("optimizer.lr=0.001",), {}))
    (found,) = differences(two)
    assert (key_of(found), found.values) == (
        "training.optimizer.lr",
        {"0.016": (f"{MUONCLIP} seed 1",), "0.001": (f"{MUONCLIP} seed 2",)},
    )
    assert differences(two, same_optimizer=False) == ()


def test_runs_of_one_arm_and_seed_are_named_by_their_directory(tmp_path):
    paths = [write_run(tmp_path / name, config(MUONCLIP, 1)) for name in ("x", "y")]
    assert names_of([read_identified(path) for path in paths]) == ["x", "y"]
