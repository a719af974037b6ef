"""Which runs are the same science, the same measurement, the same execution.

Science is hashed, execution is compared, the rest is recorded. Digests are SHA256 over canonical JSON of
the *full* values, never of differences from defaults, so that a changed default changes the digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from gpt2exp.config import Config, ModelSource
from gpt2exp.derived import probe_tokens, warmup_steps

SCIENCE_VERSION = 1
"""Bumped by hand when the same configuration starts to give other numbers."""

JSONDict = dict[str, Any]


@dataclass(frozen=True)
class InputRecord:
    """What identity needs to know of the resolved inputs: content, not paths."""

    model_sha256: str | None
    corpus_digest: str
    tokenizer_digest: str
    order_digest: str
    probe_digest: str | None = None
    spectral_estimator: str | None = None


@dataclass(frozen=True)
class Identity:
    """The tiers of a run and the digests over them."""

    training: JSONDict
    measurement: JSONDict
    execution: JSONDict

    @property
    def digests(self) -> dict[str, str]:
        """`run` = training + measurement; `arm` = without the seed; `protocol` = nor the optimizer."""
        science = {"training": self.training, "measurement": self.measurement}
        no_seed = without(self.training, "seed")
        return {
            "run": digest(science),
            "arm": digest({**science, "training": no_seed}),
            "protocol": digest({**science, "training": without(no_seed, "optimizer")}),
            "training": digest(self.training),
            "measurement": digest(self.measurement),
            "execution": digest(self.execution),
        }


def identify(cfg: Config, inputs: InputRecord, executors: Mapping[str, Any]) -> Identity:
    """The identity of a run: configuration and resolved inputs, and what executes it."""
    return Identity(
        training=training_tier(cfg, inputs),
        measurement=measurement_tier(cfg, inputs),
        execution={"hardware": cfg.hardware.kind, **executors},
    )


def training_tier(cfg: Config, inputs: InputRecord) -> JSONDict:
    """Everything that decides the weights after each step, in exact arithmetic."""
    schedule = plain(cfg.schedule)
    return {
        "science_version": SCIENCE_VERSION,
        "seed": cfg.seed,
        "precision": cfg.precision.name,
        "model": {**without(plain(cfg.model), "label", "path"), "sha256": inputs.model_sha256},
        "optimizer": without(plain(cfg.optimizer), "label"),
        "schedule": {
            **without(schedule, "label", "warmup_fraction"),
            "warmup_steps": warmup_steps(cfg.schedule),
        },
        "data": {
            "corpus": inputs.corpus_digest,
            "tokenizer": inputs.tokenizer_digest,
            "order": cfg.data.order.name,
            "order_digest": inputs.order_digest,
            "window_tokens": cfg.data.window_tokens,
            "allow_repeat": cfg.data.allow_repeat,
        },
    }


def measurement_tier(cfg: Config, inputs: InputRecord) -> JSONDict:
    """What is measured, when and on which tokens."""
    tier = {"evaluation": plain(cfg.evaluation), "split": inputs.corpus_digest}
    if cfg.tracking.every is not None:
        tier["tracking"] = {
            **without(plain(cfg.tracking), "keep_weights", "max_pending"),
            "probe_tokens": probe_tokens(cfg),
            "probe": inputs.probe_digest,
            "estimator": inputs.spectral_estimator,
        }
    return tier


def readable_ids(cfg: Config) -> dict[str, str]:
    """Names for people, beside the digests."""
    bias = "" if cfg.model.bias else "-no-bias"
    return {
        "model": f"{cfg.model.source.name}-{cfg.model.label}{bias}-packed-qkv",
        "optimizer": cfg.optimizer.label,
        "budget": f"{cfg.schedule.label}-{cfg.schedule.num_steps}x{cfg.schedule.tokens_per_step}",
        "data": f"{cfg.data.kind}-{cfg.data.order.name}",
    }


def plain(value: Any) -> Any:
    """Dataclasses, tuples and enums as JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces; NaN and infinity are refused."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """SHA256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def without(mapping: Mapping[str, Any], *keys: str) -> JSONDict:
    """A copy without some keys."""
    return {key: value for key, value in mapping.items() if key not in keys}


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    if isinstance(value, Mapping) and value:
        merged: dict[str, Any] = {}
        for key, item in value.items():
            merged.update(flatten(item, f"{prefix}.{key}" if prefix else str(key)))
        return merged
    return {prefix: value}


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Dotted keys whose values differ, with both values; an absent key counts as "-"."""
    left, right = flatten(a), flatten(b)
    keys = sorted(left.keys() | right.keys())
    pairs = ((key, left.get(key, "-"), right.get(key, "-")) for key in keys)
    return [(key, x, y) for key, x, y in pairs if x != y]


def needs_upstream(cfg: Config) -> bool:
    """Whether the run executes upstream's file."""
    return cfg.model.source is ModelSource.llmc
