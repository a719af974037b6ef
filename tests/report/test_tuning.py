"""Sweeps: the best setting over its seeds, never one that diverged, and whether the grid was wide enough."""

from __future__ import annotations

from dataclasses import replace

import pytest
from run_dirs import ADAMW, MUONCLIP, config, write_rows, write_run

from gpt2exp.report.measures import value_of
from gpt2exp.report.records import read_identified
from gpt2exp.report.tuning import explain_tuning, tune


@pytest.fixture
def sweep(tmp_path):
    """`sweep(arm, {lr: {seed: final loss}})`: the runs, read."""

    def write(arm, grid, **changed):
        runs = []
        for lr, by_seed in grid.items():
            for seed, loss in by_seed.items():
                cfg = config(arm, seed)
                cfg = replace(cfg, optimizer=replace(cfg.optimizer, lr=lr))
                path = write_run(tmp_path / arm / f"{lr}-{seed}", cfg, (5.5, 4.5, loss), **changed)
                runs.append(read_identified(path))
        return runs

    return write


def test_the_best_setting_has_the_lowest_mean_over_its_seeds(sweep):
    runs = sweep(ADAMW, {0.004: {1: 3.0, 2: 4.0}, 0.001: {1: 3.4, 2: 3.9}, 0.002: {1: 3.3, 2: 3.5}})
    (arm,) = tune(runs)
    assert arm.keys == ("lr",)
    assert [setting.values["lr"] for setting in arm.settings] == [0.001, 0.002, 0.004]
    assert [setting.mean for setting in arm.settings] == pytest.approx([3.65, 3.4, 3.5])
    assert arm.best.values == {"lr": 0.002} and arm.edges == ()


def test_a_setting_that_diverged_once_or_lacks_a_seed_is_not_chosen(sweep):
    runs = sweep(ADAMW, {0.001: {1: 3.9, 2: 3.9}, 0.002: {1: 2.0, 2: None}, 0.004: {1: 2.0}})
    (arm,) = tune(runs)
    assert arm.best.values == {"lr": 0.001} and arm.edges == ("lr",)
    assert arm.settings[2].by_seed == {1: 2.0, 2: None}
    lines = explain_tuning([arm])
    assert lines[0].endswith("(of 3 settings, 2 seeds; 2 settings without a finite value at every seed).")
    assert "lies at the low edge of its grid (0.001 to 0.004)" in lines[1]


def test_runs_that_are_not_complete_have_no_value(sweep):
    (arm,) = tune(sweep(ADAMW, {0.001: {1: 3.9}, 0.002: {1: 3.8}}, status="stopped"))
    assert arm.best is None
    assert explain_tuning([arm]) == [f"{ADAMW}: none of 2 settings has a final validation loss at every seed."]


def test_unequal_budgets_are_said_first(sweep):
    runs = [*sweep(ADAMW, {0.001: {1: 3.9}}), *sweep(MUONCLIP, {0.01: {1: 3.9}, 0.02: {1: 3.8}})]
    first, second, *_ = explain_tuning(tune(runs))
    assert first.startswith(f"Unequal tuning budgets: {ADAMW} 1, {MUONCLIP} 2 settings")
    assert second == f"{ADAMW}: lowest final validation loss 3.9 at the only setting (of 1 setting, 1 seed)."


def test_the_token_error_comes_from_the_evaluation_else_from_the_probe(tmp_path):
    path = write_run(tmp_path / "r", config(ADAMW, 1), (5.5, 4.5, 4.0))
    write_rows(path / "tracking.jsonl", [{"step": 4, "tokens": 512, "token_error": 0.7, "source": "probe"}])
    assert value_of(read_identified(path), "final_token_error") == 0.4
    (path / "evaluations.jsonl").unlink()
    assert value_of(read_identified(path), "final_token_error") == 0.7
    assert value_of(read_identified(path), "final_val_loss") is None
    write_rows(path / "tracking.jsonl", [{"step": 2, "tokens": 256, "token_error": 0.7, "source": "probe"}])
    assert value_of(read_identified(path), "final_token_error") is None
