"""The pair ledger: equal science, initial weights, data order and execution within a seed, or the key is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from run_dirs import ADAMW, CORPUS, EXECUTION, INPUTS, MUONCLIP, config, edit, one_byte_changed, write_run

from gpt2exp.report.pairs import check_pairs
from gpt2exp.report.records import read_identified


def pair(folder: Path, *overrides: str, **changed) -> tuple[Path, Path]:
    """muonclip as it is, adamw with other arguments; both of seed 1."""
    a = write_run(folder / "a", config(MUONCLIP, 1))
    return a, write_run(folder / "b", config(ADAMW, 1, *overrides), **changed)


def problems(*paths: Path, allowed=()) -> tuple[str, ...]:
    (check,) = check_pairs([read_identified(path) for path in paths], allowed)
    assert check.holds is (check.problems == ())
    return check.problems


def test_runs_that_differ_in_the_optimizer_only_are_a_pair(tmp_path):
    runs = [read_identified(path) for path in pair(tmp_path)]
    (check,) = check_pairs(runs)
    assert check.holds
    assert (check.seed, check.arms) == (1, (MUONCLIP, ADAMW))
    assert check.initial_weights == runs[0].record["initial_weights_sha256"]
    assert check.order == "c3" * 32


def test_every_seed_is_a_pair_of_its_own(tmp_path):
    paths = [
        write_run(tmp_path / f"{arm}{seed}", config(arm, seed), **changed)
        for seed, changed in ((1, {}), (2, {"initial_weights_sha256": "f" * 64}))
        for arm in (MUONCLIP, ADAMW)
    ]
    edit(paths[3], "initial_weights_sha256", "e" * 64)
    first, second = check_pairs([read_identified(path) for path in paths])
    assert first.holds
    assert second.problems == (f"initial_weights_sha256: {'f' * 64} in {MUONCLIP}, {'e' * 64} in {ADAMW}",)
    assert second.initial_weights is None


@pytest.mark.parametrize(
    ("inputs", "key", "values"),
    [
        (replace(INPUTS, order_digest="d4" * 32), "training.data.order_digest", ("c3" * 32, "d4" * 32)),
        (replace(INPUTS, tokenizer_digest="d4" * 32), "training.data.tokenizer", ("b2" * 32, "d4" * 32)),
        (replace(INPUTS, corpus_digest="d4" * 32), "training.data.corpus", (CORPUS, "d4" * 32)),
        (replace(INPUTS, model_sha256="d4" * 32), "training.model.sha256", ("null", "d4" * 32)),
    ],
)
def test_other_inputs_are_named_with_both_values(tmp_path, inputs, key, values):
    assert f"{key}: {values[0]} in {MUONCLIP}, {values[1]} in {ADAMW}" in problems(*pair(tmp_path, inputs=inputs))


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("schedule.num_steps=8", "training.schedule.num_steps: 4 in muonclip_nano, 8 in adamw_nano"),
        ("evaluation.tokens=512", "measurement.evaluation.tokens: 256 in muonclip_nano, 512 in adamw_nano"),
        ("precision=fp64", "training.precision: fp32 in muonclip_nano, fp64 in adamw_nano"),
    ],
)
def test_other_settings_are_named_with_both_values(tmp_path, override, problem):
    assert problems(*pair(tmp_path, override, status="stopped")) == (problem,)


def test_other_execution_is_named(tmp_path):
    paths = pair(tmp_path, execution={**EXECUTION, "threads": 2, "device_model": "Another CPU"})
    assert problems(*paths) == (
        f"execution.device_model: Some CPU in {MUONCLIP}, Another CPU in {ADAMW}",
        f"execution.threads: 1 in {MUONCLIP}, 2 in {ADAMW}",
    )


def test_the_orthogonalizer_belongs_to_the_optimizer(tmp_path):
    assert problems(*pair(tmp_path, execution={k: v for k, v in EXECUTION.items() if k != "orthogonalizer"})) == ()


def test_execution_may_be_allowed_to_differ_and_the_ledger_may_not(tmp_path):
    a, b = pair(tmp_path, execution={**EXECUTION, "threads": 2}, inputs=replace(INPUTS, order_digest="d4" * 32))
    found = problems(a, b, allowed=("execution.threads", "training.data.order_digest"))
    assert [problem.partition(":")[0] for problem in found] == ["training.data.order_digest"]


def test_an_inexact_resume_is_named_with_what_changed(tmp_path):
    paths = pair(tmp_path, inexact=[{"threads": [1, 2]}])
    assert problems(*paths) == (f"execution.threads: 1, then 2 in {ADAMW}, which was resumed inexactly",)
    assert problems(*paths, allowed=("execution.threads",)) == ()


def test_an_arm_that_is_there_twice_is_no_pair(tmp_path):
    a, b = pair(tmp_path)
    again = write_run(tmp_path / "c", config(ADAMW, 1))
    assert problems(a, b, again) == (f"arm {ADAMW} is there 2 times",)


def test_one_byte_of_the_data_hash_changed_in_one_run_is_refused_and_named(tmp_path):
    a, b = pair(tmp_path)
    edit(b, "training.data.corpus", one_byte_changed)
    found = problems(a, b, allowed=("training.data.corpus",))
    assert (
        f"{ADAMW}: training.data.corpus is {one_byte_changed(CORPUS)}, but measurement.split, the same hash, is "
        + (CORPUS)
        in found
    )
    assert any(text.startswith(f"{ADAMW}: digests.training is ") and "edited after the run" in text for text in found)
    assert f"training.data.corpus: {CORPUS} in {MUONCLIP}, {one_byte_changed(CORPUS)} in {ADAMW}" in found


def test_one_byte_changed_alike_in_both_runs_is_refused_too(tmp_path):
    paths = pair(tmp_path)
    for path in paths:
        edit(path, "training.data.corpus", one_byte_changed)
        edit(path, "measurement.split", one_byte_changed)
    found = problems(*paths)
    assert [text.partition(" is ")[0] for text in found] == [f"{arm}: digests.training" for arm in (MUONCLIP, ADAMW)]
    assert all("which key was changed cannot be told from this run alone" in text for text in found)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("training.optimizer.lr", 0.5, f"{ADAMW}: training.optimizer.lr is 0.5 in run.json, 0.002 in config.yaml"),
        ("training.schedule.decay", "linear", "training.schedule.decay: cosine in muonclip_nano, linear in adamw_nano"),
        ("measurement.evaluation.tokens", 999, "measurement.evaluation.tokens is 999 in run.json, 256 in config.yaml"),
        ("execution.torch", "2.14.0", "execution.torch: 2.13.0+cpu in muonclip_nano, 2.14.0 in adamw_nano"),
        ("digests.protocol", "0" * 64, f"{ADAMW}: digests.protocol is {'0' * 64}, but what run.json holds gives "),
    ],
)
def test_an_edited_record_is_refused_by_name(tmp_path, key, value, named):
    a, b = pair(tmp_path)
    edit(b, key, value)
    found = problems(a, b)
    assert any(named in text for text in found), found
    assert any("edited after the run" in text for text in found)


def test_a_complete_run_must_have_all_its_rows(tmp_path):
    a, b = pair(tmp_path)
    lines = (b / "metrics.jsonl").read_text().splitlines(keepends=True)
    (b / "metrics.jsonl").write_text("".join(lines[:1] + lines[2:]))
    evaluations = (b / "evaluations.jsonl").read_text().splitlines(keepends=True)
    (b / "evaluations.jsonl").write_text("".join(evaluations[::2]))
    assert problems(a, b) == (
        f"{ADAMW}: metrics.jsonl does not hold every step to 4 once: rows were removed or repeated",
        f"{ADAMW}: status is complete, but evaluations.jsonl lacks step 2",
    )


def test_a_complete_run_must_reach_its_budget(tmp_path):
    a, b = pair(tmp_path)
    lines = (b / "metrics.jsonl").read_text().splitlines(keepends=True)
    (b / "metrics.jsonl").write_text("".join(lines[:3]))
    assert problems(a, b) == (f"{ADAMW}: status is complete, but metrics.jsonl ends at step 3 of 4",)
