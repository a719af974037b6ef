"""`gpt2exp diff`: tiers, exit status, and every kind of side."""

from __future__ import annotations

import json
import shutil

import pytest

CHANGES = {
    "a": ["optimizer=adamw"],
    "twin": ["checkpoint.keep=1", "logging.log_every=2", "arm=renamed", "optimizer=adamw"],
    "seed": ["seed=43", "optimizer=adamw"],
    "sgd": ["optimizer=sgd"],
    "measured": ["evaluation.tokens=512", "optimizer=adamw"],
    "micro": ["hardware.micro_batch_size=2", "optimizer=adamw"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_run):
    """Small finished runs that differ in one thing each."""
    from gpt2exp.compose import compose
    from gpt2exp.experiment import Request, run

    root = tmp_path_factory.mktemp("runs")
    for name, changes in CHANGES.items():
        keys = {change.partition("=")[0] for change in changes}
        overrides = [*(text for text in tiny_run if text.partition("=")[0] not in keys), *changes]
        choices = {"model": "tiny", "optimizer": "sgd" if name == "sgd" else "adamw"}
        run(compose(overrides), Request(root / name, choices, tuple(overrides)))
    return root


@pytest.fixture
def diff(cli, runs, monkeypatch):
    def call(a, b):
        monkeypatch.chdir(runs)
        return cli("diff", a, b)

    return call


def sections(text: str) -> dict[str, dict[str, str]]:
    """{tier: {key: "left -> right"}}; the verdict comes as a tier without keys."""
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        if line.startswith("  "):
            key, _, values = line.strip().partition("  ")
            found[list(found)[-1]][key] = values.strip()
        else:
            found[line] = {}
    return found


def test_a_run_and_itself(diff):
    done = diff("a", "a")
    assert (done.status, done.out, done.err) == (0, "same science\n", "")


def test_bookkeeping_is_shown_and_does_not_count(diff):
    done = diff("a", "twin")
    found = sections(done.out)
    assert done.status == 0 and list(found) == ["recorded", "same science"]
    assert found["recorded"]["checkpoint.keep"] == "2 -> 1"
    assert found["recorded"]["overrides.logging.log_every"] == "1 -> 2"
    assert found["recorded"]["arm"] == "adamw -> renamed"


def test_a_pair_differs_in_its_optimizer_and_nothing_else_of_science(diff):
    done = diff("a", "sgd")
    found = sections(done.out)
    assert done.status == 1 and list(found) == ["choices", "training", "recorded", "different science"]
    assert found["choices"] == {"optimizer": "adamw -> sgd"}
    assert {key.partition(".")[0] for key in found["training"]} == {"optimizer"}
    assert found["training"]["optimizer.betas"] == "[0.9, 0.95] -> -"
    assert found["training"]["optimizer.momentum"] == "- -> 0.0"


def test_another_seed_is_other_science_and_other_initial_weights(diff):
    done = diff("a", "seed")
    found = sections(done.out)
    assert done.status == 1 and found["training"] == {"seed": "42 -> 43"}
    assert "initial_weights_sha256" in found["recorded"]


def test_another_measurement_is_other_science(diff):
    found = sections(diff("a", "measured").out)
    assert found["measurement"] == {"evaluation.tokens": "256 -> 512"} and "training" not in found


def test_another_execution_is_shown_and_does_not_count(diff):
    done = diff("a", "micro")
    assert done.status == 0 and sections(done.out)["execution"]["micro_batch_size"] == "4 -> 2"


def test_files_are_compared_by_configuration(diff):
    done = diff("a/config.yaml", "sgd/config.yaml")
    found = sections(done.out)
    assert done.status == 1 and list(found) == ["training", "recorded", "different science"]
    assert found["recorded"] == {"arm": "adamw -> sgd", "label.optimizer": "adamw -> sgd"}


def test_a_run_and_a_file(diff, runs, tmp_path):
    assert diff("a", "a/config.yaml").out == "same science\n"
    file = tmp_path / "other.yaml"
    file.write_text((runs / "a/config.yaml").read_text().replace("train_tokens: 4096", "train_tokens: 8192"))
    done = diff("a", str(file))
    assert done.status == 1 and sections(done.out)["training"] == {"data.train_tokens": "4096 -> 8192"}


def test_a_side_that_cannot_be_read_is_one_line(diff, runs):
    for name, record in {
        "halved": "{",
        "empty": '{"schema": 1}',
        "list": "[]",
        "newer": '{"schema": 99}',
    }.items():
        if not (runs / name).exists():
            shutil.copytree(runs / "a", runs / name)
        (runs / name / "run.json").write_text(record)
    said = {name: diff("a", name) for name in ("halved", "empty", "list", "newer")}
    assert {name: done.status for name, done in said.items()} == dict.fromkeys(said, 7)
    assert all(len(done.problems) == 1 and done.out == "" for done in said.values())
    assert "not readable JSON" in said["halved"].err and "no 'choices'" in said["empty"].err
    assert "not the record of a run" in said["list"].err and "newer gpt2exp" in said["newer"].err


@pytest.mark.parametrize("side", ["nowhere", "a/run.json", "a/metrics.jsonl", "a/checkpoints"])
def test_a_side_that_is_neither_run_nor_configuration_is_refused(side, diff):
    done = diff("a", side)
    assert (done.status, len(done.problems), done.out) == (2, 1, "")
    assert side in done.err


def test_the_recorded_digests_agree_with_the_verdict(diff, runs):
    def digest(name):
        return json.loads((runs / name / "run.json").read_text())["digests"]["run"]

    for name in ("twin", "seed", "sgd", "measured", "micro"):
        assert (diff("a", name).status == 0) == (digest("a") == digest(name)), name
