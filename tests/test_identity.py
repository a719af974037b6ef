"""Which changes make another run, arm or protocol, and which change nothing that is hashed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quick import quickly

from gpt2exp.config import Precision
from gpt2exp.identity import (
    Identity,
    InputRecord,
    canonical,
    differing,
    digest,
    flatten,
    identify,
    needs_upstream,
    plain,
    readable_ids,
    without,
)

INPUTS = InputRecord("file", "corpus", "tokenizer", "order")
EXECUTORS = {"device": "cpu", "threads": 1}
SCIENCE = ("run", "arm", "protocol", "training", "measurement")


def digests(*overrides: str, inputs: InputRecord = INPUTS, executors=EXECUTORS) -> dict[str, str]:
    return identify(quickly(*overrides), inputs, executors).digests


def changed(*overrides: str, base: tuple[str, ...] = (), **more) -> set[str]:
    """The digests that overrides (or inputs, or executors) change."""
    before, after = digests(*base), digests(*base, *overrides, **more)
    return {name for name in before if before[name] != after[name]}


NOTHING: set[str] = set()
SEED = {"run", "training"}
OPTIMIZER = {"run", "arm", "training"}
TRAINING = {"run", "arm", "protocol", "training"}
MEASUREMENT = {"run", "arm", "protocol", "measurement"}


@pytest.mark.parametrize(
    "override",
    [
        "arm=other",
        "model.label=other",
        "optimizer.label=other",
        "schedule.label=other",
        "hardware.micro_batch_size=4",
        "hardware.threads=2",
        "checkpoint.every=7",
        "checkpoint.keep=9",
        "logging.log_every=3",
        "sample.tokens=0",
        "sample.temperature=2",
        "resume.enabled=true",
        "resume.allow_inexact=true",
        "gate.patience=3",
        "stop_after_steps=5",
    ],
)
def test_names_hardware_and_housekeeping_change_nothing(override):
    assert changed(override) == NOTHING


def test_the_path_of_the_model_file_changes_nothing():
    assert changed("model.path=elsewhere.py", base=("model=gpt2",)) == NOTHING


def test_paths_of_data_change_nothing_as_long_as_the_content_is_the_same():
    base = ("data=text", "data.paths=[a.txt]")
    assert digests(*base) == digests("data=text", "data.paths=[b.txt]")


@pytest.mark.parametrize(
    "override",
    [
        "model.n_layer=2",
        "model.n_head=2",
        "model.n_embd=64",
        "model.block_size=256",
        "model.vocab_size=300",
        "model.bias=false",
        "model.source=llmc",
        "schedule.num_steps=300",
        "schedule.warmup_steps=10",
        "schedule.warmup=nanogpt",
        "schedule.decay=linear",
        "schedule.min_lr_ratio=0.1",
        "schedule.tokens_per_step=8192",
        "schedule.context_length=64",
        "data.order=upstream_python",
        "data.allow_repeat=true",
        "precision=bf16",
        "hardware.default_precision=bf16",
    ],
)
def test_what_decides_the_weights_changes_all_but_the_measurement(override):
    assert changed(override) == TRAINING


def test_window_tokens_decide_the_weights():
    base = ("data.order=upstream_python",)
    assert changed("data.window_tokens=2048", base=base) == TRAINING


def test_the_seed_changes_the_run_but_neither_arm_nor_protocol():
    assert changed("seed=43") == SEED


@pytest.mark.parametrize(
    "override",
    [
        "optimizer.lr=0.001",
        "optimizer.betas=[0.9,0.99]",
        "optimizer.eps=1e-6",
        "optimizer.weight_decay=0",
        "optimizer.decay_scope=none",
        "optimizer.max_grad_norm=0",
    ],
)
def test_the_optimizer_changes_the_arm_but_not_the_protocol(override):
    assert changed(override, base=("optimizer=adamw",)) == OPTIMIZER


def test_pairs_share_the_protocol_and_arms_share_the_seedless_digest():
    runs = {(o, s): digests(f"optimizer={o}", f"seed={s}") for o in ("adamw", "sgd") for s in (1, 2)}
    assert len({d["run"] for d in runs.values()}) == 4
    assert len({d["arm"] for d in runs.values()}) == 2
    assert len({d["protocol"] for d in runs.values()}) == 1


@pytest.mark.parametrize("override", ["evaluation.every=100", "evaluation.tokens=131072", "evaluation=off"])
def test_what_is_measured_changes_all_but_the_training(override):
    assert changed(override) == MEASUREMENT


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("model_sha256", TRAINING),
        ("corpus_digest", TRAINING | MEASUREMENT),
        ("tokenizer_digest", TRAINING),
        ("order_digest", TRAINING),
    ],
)
def test_the_content_of_the_inputs_is_science(field, expected):
    assert changed(inputs=replace(INPUTS, **{field: "other"})) == expected


def test_what_executes_is_compared_not_hashed_as_science():
    found = changed(executors={**EXECUTORS, "threads": 2})
    assert found == {"execution"} and found.isdisjoint(SCIENCE)


def test_warmup_as_a_fraction_or_in_steps_is_the_same_science():
    fraction = ("schedule.warmup_steps=null", "schedule.warmup_fraction=0.1")
    assert digests(*fraction) == digests("schedule.warmup_steps=20")


def test_the_way_a_value_is_chosen_does_not_matter():
    assert digests("optimizer=adamw", "optimizer.lr=0.001") == digests(
        "optimizer=nanogpt_adamw", "optimizer.betas=[0.9,0.95]"
    )
    assert digests("preset=nanogpt_shakespeare") == digests(
        "model=nanogpt_mini",
        "optimizer=nanogpt_adamw",
        "schedule=nanogpt_shakespeare",
        "data=tinyshakespeare",
        "evaluation.every=250",
        "tracking=every_250",
    )


@pytest.mark.parametrize(
    "override",
    ["tracking=off", "tracking.every=50", "tracking.also_at=[25]", "tracking.token_error_every=25",
     "tracking.backend=fast", "tracking.randomize=true", "tracking.probe_tokens=1280", "evaluation.every=25"],
)  # fmt: skip
def test_what_is_tracked_is_measurement(override):
    assert changed(override) == MEASUREMENT


@pytest.mark.parametrize("override", ["tracking.keep_weights=true", "tracking.max_pending=9"])
def test_how_snapshots_are_stored_is_not(override):
    assert changed(override) == NOTHING


def test_the_version_that_fits_is_measurement():
    assert changed(inputs=replace(INPUTS, spectral_estimator="weightwatcher 0.7.8")) == MEASUREMENT
    assert changed(inputs=replace(INPUTS, probe_digest="other tokens")) == MEASUREMENT


@pytest.mark.parametrize("forms", [["1", "1.0", "1e0", "10e-1", "+1"], ["0.003", "3e-3", "3.0e-03"], ["0", "0.0"]])
def test_ways_to_write_a_number_are_one_digest(forms):
    assert len({digests(f"optimizer.lr={form}", "optimizer.weight_decay=0")["run"] for form in forms}) == 1


def test_the_way_digests_are_made_is_pinned():
    """Recorded runs are recognised by these: another way to make them is another science version."""
    identity = Identity({"seed": 1, "optimizer": {"lr": 0.1}, "x": [1.0, None]}, {"every": 5}, {"threads": 1})
    assert {name: value[:16] for name, value in identity.digests.items()} == {
        "run": "4c0b1f8238c52b96",
        "arm": "8a62cf5893f0c559",
        "protocol": "7700ceddc4787498",
        "training": "60d1e8bfc136ae5b",
        "measurement": "9c98fb4f79a55be4",
        "execution": "3da87426a588bc30",
    }


# canonical JSON

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_canonical_json_reads_back_to_itself(value):
    text = canonical(value)
    assert canonical(json.loads(text)) == text
    assert digest(json.loads(text)) == digest(value)


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_the_order_of_keys_does_not_matter(mapping):
    assert canonical(dict(reversed(mapping.items()))) == canonical(mapping)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
def test_numbers_that_json_lacks_are_refused(value):
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical(value)


def test_canonical_form():
    assert canonical({"b": (1, 2.5), "a": Precision.fp32, "c": {"y": None, "x": "ä"}}) == (
        '{"a":"fp32","b":[1,2.5],"c":{"x":"\\u00e4","y":null}}'
    )
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


# helpers


def test_differing_names_dotted_keys_and_both_values():
    a = {"x": {"y": 1, "z": [1]}, "same": 0, "gone": {}}
    b = {"x": {"y": 2, "z": [1]}, "same": 0, "new": None}
    assert differing(a, b) == [("gone", {}, "-"), ("new", "-", None), ("x.y", 1, 2)]
    assert differing(a, a) == []


def test_flatten_and_without():
    assert flatten({"a": {"b": {"c": 1}}, "d": 2}) == {"a.b.c": 1, "d": 2}
    assert without({"a": 1, "b": 2}, "a", "absent") == {"b": 2}
    assert plain({"a": (Precision.fp64,)}) == {"a": ["fp64"]}


def test_names_for_people():
    assert readable_ids(quickly("model=gpt2", "schedule=gpt2_fineweb", "optimizer=adamw")) == {
        "model": "llmc-gpt2-124M-packed-qkv",
        "optimizer": "adamw",
        "budget": "gpt2_fineweb-19560x524288",
        "data": "stdlib-exact_sequential",
    }
    assert readable_ids(quickly("model.bias=false"))["model"] == "reference-nano-no-bias-packed-qkv"


def test_only_upstreams_model_needs_upstreams_file():
    assert needs_upstream(quickly("model=gpt2")) and not needs_upstream(quickly())
