"""Every rule of a configuration, by the line a user reads when it is broken."""

from __future__ import annotations

import pytest
from quick import quickly

from gpt2exp.config import Precision
from gpt2exp.errors import ConfigError
from gpt2exp.rules import ENGINES, EngineLimits

BROKEN = {
    "schedule.context_length=48": [
        "schedule.tokens_per_step=4096: must be a multiple of schedule.context_length=48",
        "evaluation.tokens=65536: must be a positive multiple of schedule.context_length=48",
    ],
    "schedule.context_length=256": ["schedule.context_length=256: at most model.block_size=128"],
    "schedule.tokens_per_step=4000": [
        "schedule.tokens_per_step=4000: must be a multiple of schedule.context_length=128"
    ],
    "hardware.micro_batch_size=3": [
        "hardware.micro_batch_size=3 x hardware.devices=1: must divide the 32 rows of a step "
        "(tokens_per_step / context_length)"
    ],
    "hardware.micro_batch_size=64": [
        "hardware.micro_batch_size=64 x hardware.devices=1: must divide the 32 rows of a step "
        "(tokens_per_step / context_length)"
    ],
    "hardware.devices=2": ["hardware.devices=2: hardware=cpu has at most 1"],
    "data.tokenizer=gpt2": ["model.vocab_size=256: smaller than the vocabulary of data=stdlib (50257)"],
    "data.vocab_size=257": ["model.vocab_size=256: smaller than the vocabulary of data=stdlib (257)"],
    "data.tokenizer=chars": ["data.tokenizer=chars: data=stdlib is read as bytes, gpt2 or gpt2_bytes"],
    "data.val_percent=100": ["data.val_percent=100: must be below 100"],
    "model.n_head=3": ["model.n_head=3: must divide model.n_embd=128"],
    "model.vocab_size=65536": ["model.vocab_size=65536: at most 65535 fit the uint16 token format"],
    "model.source=llmc model.bias=false": [
        "model.bias=false: upstream's GPT always has biases; use model.source=reference"
    ],
    "model.path=x.py": ["model.path=x.py: only model.source=llmc reads a file"],
    "schedule.warmup_steps=200": [
        "schedule.warmup_steps=200: must be less than schedule.num_steps=200",
    ],
    "schedule.num_steps=1 schedule.warmup_steps=null schedule.warmup_fraction=0.6": [
        "schedule.warmup_steps=1: must be less than schedule.num_steps=1",
    ],
    "schedule.warmup_fraction=0.1": [
        "schedule.warmup_steps=20 and schedule.warmup_fraction=0.1: give exactly one, null the other"
    ],
    "schedule.warmup_steps=null": [
        "schedule.warmup_steps=null and schedule.warmup_fraction=null: give exactly one, null the other"
    ],
    "schedule.warmup_steps=null schedule.warmup_fraction=1": ["schedule.warmup_fraction=1: must lie in [0, 1)"],
    "schedule.min_lr_ratio=1.5": ["schedule.min_lr_ratio=1.5: must lie in [0, 1]"],
    "evaluation.tokens=100": ["evaluation.tokens=100: must be a positive multiple of schedule.context_length=128"],
    "evaluation.tokens=0": ["evaluation.tokens=0: must be a positive multiple of schedule.context_length=128"],
    "data=synthetic data.val_tokens=65536": [
        "evaluation.tokens=65536: the split has 65536 tokens, so at most 65535 targets"
    ],
    "data.window_tokens=2048": ["data.window_tokens=2048: only data.order=upstream_python reads it"],
    "data.order=upstream_python data.window_tokens=3000": [
        "data.window_tokens=3000: must divide schedule.tokens_per_step=4096 and be a multiple of "
        "schedule.context_length=128"
    ],
    "data=text data.paths=[a] data.val_fraction=1": ["data.val_fraction=1: must lie between 0 and 1"],
    "optimizer.lr=-0.1": ["optimizer.lr=-0.1: must not be negative"],
    "optimizer.lr=10 optimizer.weight_decay=0.2": [
        "optimizer.weight_decay=0.2: lr*weight_decay is 2, and must stay below 1"
    ],
    "optimizer=adamw optimizer.betas=[0.9,1]": ["optimizer.betas[1]=1: must lie in [0, 1)"],
    "optimizer=adamw optimizer.betas=[0.9]": ["optimizer.betas=[0.9]: expected 2 values, found 1"],
    "optimizer=adamw optimizer.betas=[0.9,0.9,0.9]": ["optimizer.betas=[0.9, 0.9, 0.9]: expected 2 values, found 3"],
    "optimizer=adamw optimizer.betas=[]": ["optimizer.betas=[]: expected 2 values, found 0"],
    "optimizer=adamw optimizer.eps=0": ["optimizer.eps=0: must be greater than 0"],
    "optimizer=sgd optimizer.nesterov=true": ["optimizer.nesterov=true: needs optimizer.momentum greater than 0"],
    "optimizer.kind=sgd": ["optimizer.kind=sgd: is not set alone; choose optimizer=<option>"],
    "optimizer.kind=lion": ["optimizer.kind=lion: is not set alone; choose optimizer=<option>"],
    "data.kind=text": ["data.kind=text: is not set alone; choose data=<option>"],
    "hardware.kind=abacus": [f"hardware.kind=abacus: unknown (known: {', '.join(ENGINES)})"],
    "seed=-1": ["seed=-1: must be at least 0"],
    "seed=9223372036854775808": ["seed=9223372036854775808: must be below 2^63"],
    "sample.temperature=0": ["sample.temperature=0: must be greater than 0"],
    "arm=a/b": ["arm='a/b': use letters, digits, '.', '_' and '-', at most 64"],
    "arm=..": ["arm='..': use letters, digits, '.', '_' and '-', at most 64"],
    "arm=": ["arm='': use letters, digits, '.', '_' and '-', at most 64"],
    'optimizer.label="ä"': ["optimizer.label='ä': use letters, digits, '.', '_' and '-', at most 64"],
    "model.label=a:b": ["model.label='a:b': use letters, digits, '.', '_' and '-', at most 64"],
}

AT_LEAST_ONE = [
    "model.n_layer", "model.n_head", "model.n_embd", "model.block_size", "model.vocab_size",
    "schedule.num_steps", "schedule.tokens_per_step", "schedule.context_length", "hardware.devices",
    "hardware.micro_batch_size", "hardware.threads", "evaluation.every", "checkpoint.every",
    "logging.log_every", "stop_after_steps", "data.window_tokens", "data.vocab_size", "data.val_percent",
    "sample.top_k",
]  # fmt: skip
AT_LEAST_ZERO = [
    "schedule.warmup_steps",
    "evaluation.tokens",
    "checkpoint.keep",
    "sample.tokens",
    "gate.patience",
]

FLOATS = {
    "optimizer=adamw": ["lr", "eps", "weight_decay", "max_grad_norm"],
    "optimizer=sgd": ["lr", "momentum", "weight_decay", "max_grad_norm"],
}


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        quickly(*overrides)
    return refused.value.problems


@pytest.mark.parametrize("overrides", BROKEN)
def test_a_broken_rule_is_one_line_with_the_value_and_what_is_right(overrides):
    assert problems(*overrides.split()) == BROKEN[overrides]


@pytest.mark.parametrize(("key", "value"), [*((key, 0) for key in AT_LEAST_ONE), *((key, -1) for key in AT_LEAST_ZERO)])
def test_numbers_below_their_least_value(key, value):
    assert f"{key}={value}: must be at least {value + 1}" in problems(f"{key}={value}")


@pytest.mark.parametrize("key", ["train_tokens", "val_tokens"])
def test_synthetic_splits_hold_a_token(key):
    assert f"data.{key}=0: must be at least 1" in problems("data=synthetic", f"data.{key}=0")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("choice", "key"),
    [(choice, f"optimizer.{key}") for choice, keys in FLOATS.items() for key in keys]
    + [("seed=1", "schedule.min_lr_ratio"), ("seed=1", "sample.temperature")],
)
def test_numbers_are_finite(choice, key, value):
    assert problems(choice, f"{key}={value}") == [f"{key}={value}: must be finite"]


def test_numbers_in_lists_and_fractions_are_finite():
    assert problems("optimizer=adamw", "optimizer.betas=[0.9,nan]") == ["optimizer.betas=[0.9, nan]: must be finite"]
    fraction = ["schedule.warmup_steps=null", "schedule.warmup_fraction=nan"]
    assert problems(*fraction) == ["schedule.warmup_fraction=nan: must be finite"]


def test_problems_of_independent_sections_come_at_once():
    assert problems("schedule.num_steps=0", "optimizer.lr=-1", "hardware.kind=abacus", "model.n_head=3", "arm=/") == [
        "schedule.num_steps=0: must be at least 1",
        "model.n_head=3: must divide model.n_embd=128",
        "optimizer.lr=-1: must not be negative",
        f"hardware.kind=abacus: unknown (known: {', '.join(ENGINES)})",
        "arm='/': use letters, digits, '.', '_' and '-', at most 64",
    ]


@pytest.mark.parametrize(
    "overrides",
    [
        "schedule.tokens_per_step=128 hardware.micro_batch_size=1",
        "hardware.micro_batch_size=32",
        "model.vocab_size=65535",
        "schedule.warmup_steps=199",
        "schedule.warmup_steps=0",
        "schedule.min_lr_ratio=1",
        "evaluation=off",
        "evaluation.every=null evaluation.tokens=7",
        "data=synthetic data.val_tokens=65537",
        "optimizer.lr=0",
        "optimizer=adamw optimizer.betas=[0,0]",
        "checkpoint.every=null checkpoint.keep=0",
        "stop_after_steps=1000",
        "seed=9223372036854775807",
        "arm=a.b_c-1",
        "data.order=upstream_python data.window_tokens=2048",
        "data.order=upstream_python",
    ],
)
def test_the_last_allowed_value_is_allowed(overrides):
    quickly(*overrides.split())


def test_an_engine_offers_its_precisions_only(monkeypatch):
    monkeypatch.setitem(ENGINES, "cpu", EngineLimits((Precision.fp64,), max_devices=1))
    assert problems("precision=bf16") == ["precision=bf16: hardware=cpu offers fp64"]


def test_devices_times_micro_batch_divides_the_rows(monkeypatch):
    monkeypatch.setitem(ENGINES, "cpu", EngineLimits(tuple(Precision), max_devices=8))
    quickly("hardware.devices=4", "hardware.micro_batch_size=8")
    assert problems("hardware.devices=4", "hardware.micro_batch_size=16") == [
        "hardware.micro_batch_size=16 x hardware.devices=4: must divide the 32 rows of a step "
        "(tokens_per_step / context_length)"
    ]
    assert "x hardware.devices=3: must divide the 32 rows" in problems("hardware.devices=3")[0]


MATRIX_OPTIMIZERS = {
    "optimizer.ns_steps=0": "optimizer.ns_steps=0: must lie in 1..30",
    "optimizer.momentum=1": "optimizer.momentum=1: must lie in [0, 1)",
    "optimizer.weight_decay=60": "optimizer.weight_decay=60: lr*weight_decay is 1.2, and must stay below 1",
    "optimizer.aux.lr=-1": "optimizer.aux.lr=-1: must not be negative",
    "optimizer.aux.decay_scope=hidden": (
        "optimizer.aux.decay_scope=hidden: the hidden matrices are Muon's; use matrices or none"
    ),
    "optimizer.qk_clip_threshold=0": (
        "optimizer.qk_clip_threshold=0: must be greater than 0; optimizer=muon never clips"
    ),
    "optimizer.qk_clip_balance=1.5": "optimizer.qk_clip_balance=1.5: must lie in [0, 1]",
}


@pytest.mark.parametrize("override", MATRIX_OPTIMIZERS)
def test_values_of_muonclip(override):
    with pytest.raises(ConfigError) as caught:
        quickly("optimizer=muonclip", override)
    assert caught.value.problems == [MATRIX_OPTIMIZERS[override]]


def test_eigenvalues_have_no_bf16_form():
    quickly("optimizer=muon", "optimizer.ns_precision=bf16")
    with pytest.raises(ConfigError, match=r"orthogonalizer=eigh: has no bf16 form .* use auto or ns"):
        quickly("optimizer=muon", "optimizer.ns_precision=bf16", "hardware.orthogonalizer=eigh")
