"""Rules that need the corpus; and what a finished run remembers."""

from __future__ import annotations

import pytest

from gpt2exp import rundir
from gpt2exp.assembly import resolve
from gpt2exp.compose import compose
from gpt2exp.errors import ConfigError
from gpt2exp.experiment import Request, run

SMALL = [
    "model=tiny", "data=synthetic", "data.train_tokens=6401", "data.val_tokens=1025", "schedule.num_steps=25",
    "schedule.tokens_per_step=256", "schedule.context_length=64", "schedule.warmup_steps=1",
    "evaluation.tokens=1024",
]  # fmt: skip


def test_a_budget_of_exactly_the_corpus_fits():
    assert resolve(compose(SMALL)).windows.horizon == 25


def test_one_step_more_would_repeat_and_must_be_asked_for():
    more = [*SMALL[:4], "schedule.num_steps=26", *SMALL[5:]]
    with pytest.raises(ConfigError, match=r"num_steps=26.*wraps at update 25.*allow_repeat=true"):
        resolve(compose(more))
    resolve(compose([*more, "data.allow_repeat=true"]))


def test_evaluation_must_fit_the_split(tmp_path):
    (tmp_path / "text.txt").write_text("some words, again and again. " * 400)
    with pytest.raises(ConfigError) as caught:
        resolve(compose([
            "model=tiny", "data=text", f"data.paths=['{tmp_path}/text.txt']", "schedule.num_steps=500",
            "schedule.tokens_per_step=256", "schedule.context_length=64", "evaluation.tokens=12800",
        ]))  # fmt: skip
    assert len(caught.value.problems) == 2
    assert "evaluation.tokens=12800" in caught.value.problems[1] and "num_steps=500" in caught.value.problems[0]


def test_characters_beyond_the_models_vocabulary_are_refused(tmp_path):
    (tmp_path / "text.txt").write_text("".join(chr(0x4E00 + i) for i in range(300)) * 200, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"model\.vocab_size=256.*300"):
        resolve(compose(["data=text", f"data.paths=['{tmp_path}/text.txt']", "data.tokenizer=chars",
                         "schedule.num_steps=5", "schedule.warmup_steps=1", "evaluation=off"]))  # fmt: skip


def test_a_run_remembers_what_it_was(tmp_path):
    overrides = [*SMALL, "checkpoint.keep=0"]
    loss = run(compose(overrides), Request(tmp_path / "run", {"model": "tiny"}, tuple(overrides)))
    record = rundir.read_record(tmp_path / "run")
    assert record["status"] == "complete" and record["final_val_loss"] == loss
    assert record["choices"] == {"model": "tiny"} and record["overrides"] == overrides
    assert len(record["digests"]["run"]) == 64 and len(record["initial_weights_sha256"]) == 64
    assert record["execution"]["micro_batch_size"] == 4 and record["execution"]["threads"] >= 1
    assert record["versions"]["torch"].startswith("2.")
