"""Configuration schemas: frozen dataclasses that Hydra composes against and every room reads.

Imports neither torch, numpy nor pandas: composing a configuration must stay fast.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from gpt2exp.optim.base import Recipe
from gpt2exp.optim.orthogonalize import OrthogonalizerKind

MISSING: Any = "???"


class ModelSource(Enum):
    """Whose code the model is."""

    llmc = "llmc"
    """karpathy/llm.c's `train_gpt2.py`, byte-identical, never patched."""
    reference = "reference"
    """Our own GPT-2 with the same names, initialisation and numerics; needs no download."""


class Precision(Enum):
    """Arithmetic of forward and backward; parameters and optimizer state stay fp32 under bf16."""

    fp32 = "fp32"
    fp64 = "fp64"
    bf16 = "bf16"


class Warmup(Enum):
    """Form of the linear warm-up at update `it` (from 0)."""

    upstream = "upstream"
    """(it + 1) / warmup_steps: the full rate is reached at the last warm-up step (llm.c)."""
    nanogpt = "nanogpt"
    """(it + 1) / (warmup_steps + 1) (nanoGPT)."""


class Decay(Enum):
    """Shape of the learning rate after warm-up, from 1 down to `min_lr_ratio`."""

    cosine = "cosine"
    linear = "linear"
    constant = "constant"


class Order(Enum):
    """Which tokens make up step `u`."""

    exact_sequential = "exact_sequential"
    """Tokens [u*W, (u+1)*W] of the concatenated training split, W = tokens_per_step."""
    upstream_python = "upstream_python"
    """The walk of upstream's DistributedDataLoader: windows never cross a shard, tails are dropped."""


class Tokenizer(Enum):
    """How text becomes integers."""

    bytes = "bytes"
    """UTF-8 bytes: vocabulary 256."""
    chars = "chars"
    """The distinct characters of the corpus in code-point order (nanoGPT's shakespeare_char)."""
    gpt2 = "gpt2"
    """GPT-2's byte-pair encoding: vocabulary 50,257; needs its vocabulary files."""
    gpt2_bytes = "gpt2_bytes"
    """Bytes written with the ids GPT-2 gives single bytes; needs no vocabulary files."""


class SpectralBackend(Enum):
    """Who fits the layer spectra; results of one are never pooled with the other's."""

    weightwatcher = "weightwatcher"
    """WeightWatcher itself: the reference."""
    fast = "fast"
    """Our own equivalent: the same numbers for a fraction of the time."""


class Preflight(Enum):
    """Whether a run must have been tried out on its machine before."""

    off = "off"
    auto = "auto"
    """Made before the run, in a process of its own, unless a fresh one that matches is there."""
    required = "required"
    """A fresh one that matches must be there: `gpt2exp preflight` makes it."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape and source of the GPT; field names are nanoGPT's."""

    label: str = MISSING
    source: ModelSource = MISSING
    path: str | None = None
    n_layer: int = MISSING
    n_head: int = MISSING
    n_embd: int = MISSING
    block_size: int = MISSING
    vocab_size: int = MISSING
    bias: bool = True


@dataclass(frozen=True)
class ScheduleConfig:
    """The budget: how many updates of how many tokens, and the learning rate's shape over them."""

    label: str = MISSING
    num_steps: int = MISSING
    warmup_steps: int | None = None
    warmup_fraction: float | None = None
    warmup: Warmup = Warmup.upstream
    decay: Decay = Decay.cosine
    min_lr_ratio: float = 0.0
    tokens_per_step: int = MISSING
    context_length: int = MISSING


@dataclass(frozen=True)
class DataConfig:
    """What every data set has: an order, and whether training may see a token twice."""

    kind: str = MISSING
    order: Order = Order.exact_sequential
    window_tokens: int | None = None
    allow_repeat: bool = False


@dataclass(frozen=True)
class StdlibData(DataConfig):
    """Source files of the running interpreter's standard library, as bytes; no download."""

    kind: str = "stdlib"
    tokenizer: Tokenizer = Tokenizer.bytes
    val_percent: int = 10
    vocab_size: int | None = None


@dataclass(frozen=True)
class TextData(DataConfig):
    """UTF-8 files or globs, concatenated in path order; the tail of the tokens is the validation split."""

    kind: str = "text"
    paths: tuple[str, ...] = MISSING
    val_paths: tuple[str, ...] = ()
    tokenizer: Tokenizer = Tokenizer.bytes
    tokenizer_path: str | None = None
    val_fraction: float = 0.1
    vocab_size: int | None = None


@dataclass(frozen=True)
class ShakespeareData(DataConfig):
    """Tiny Shakespeare as characters, first 90 % train (nanoGPT's shakespeare_char)."""

    kind: str = "tinyshakespeare"
    path: str | None = None
    sha256: str = MISSING
    url: str = MISSING
    tokenizer: Tokenizer = Tokenizer.chars
    val_fraction: float = 0.1
    vocab_size: int | None = MISSING


@dataclass(frozen=True)
class ShardData(DataConfig):
    """llm.c token shards: `.bin` files of uint16 tokens behind a 1,024-byte header."""

    kind: str = "shards"
    train: str = MISSING
    val: str = MISSING
    vocab_size: int = MISSING


@dataclass(frozen=True)
class PublishedShardData(DataConfig):
    """A published set of llm.c token shards, whose names, lengths and hashes are known."""

    kind: str = "fineweb10B"
    source: str = MISSING
    folder: str | None = None
    vocab_size: int = MISSING
    train_shards: int | None = None


@dataclass(frozen=True)
class SyntheticData(DataConfig):
    """Tokens of an integer linear congruential generator: the same on every machine, for tests."""

    kind: str = "synthetic"
    vocab_size: int = MISSING
    train_tokens: int = MISSING
    val_tokens: int = MISSING


@dataclass(frozen=True)
class HardwareConfig:
    """Where the arithmetic runs. Nothing here is science: it is compared, not hashed.

    The last three are read by the SQL engines: `max_rows` bounds the rows that a micro-batch joins, `replay` runs
    captured plans instead of rewriting the statements every step, and an update that takes longer than
    `step_deadline_seconds` ends the attempt.
    """

    kind: str = MISSING
    devices: int = 1
    micro_batch_size: int | None = None
    threads: int | None = None
    orthogonalizer: OrthogonalizerKind = OrthogonalizerKind.auto
    default_precision: Precision = Precision.fp32
    preflight: Preflight = Preflight.off
    max_rows: int = 120_000_000
    replay: bool = True
    step_deadline_seconds: float | None = None


@dataclass(frozen=True)
class EvaluationConfig:
    """Validation at step 0, every `every` steps and the last step; `every: null` turns it off."""

    every: int | None = MISSING
    tokens: int = MISSING


@dataclass(frozen=True)
class TrackingConfig:
    """Layer spectra, and the token error beside them.

    Spectra are taken at step 0, every `every` steps, at each step of `also_at` and at the last step; `every: null`
    turns tracking off. The token error is taken at the same steps, and every `token_error_every` steps where
    that is set: from the evaluation where one is due, else from the first `probe_tokens` of the validation split
    (null: as many as the evaluation reads, so that the series is about the same tokens at every step; none
    without an evaluation). Snapshots are deleted once fitted, unless `keep_weights`; training waits while
    `max_pending` are not.
    """

    every: int | None = MISSING
    also_at: tuple[int, ...] = ()
    token_error_every: int | None = None
    backend: SpectralBackend = SpectralBackend.weightwatcher
    randomize: bool = False
    probe_tokens: int | None = None
    keep_weights: bool = False
    max_pending: int = 4


@dataclass(frozen=True)
class CheckpointConfig:
    """Save every `every` steps (null: only when stopping and at the end); keep the newest `keep`."""

    every: int | None = 100
    keep: int = 2


@dataclass(frozen=True)
class LoggingConfig:
    """Results are read back, written and printed every `log_every` steps."""

    log_every: int = 10


@dataclass(frozen=True)
class SampleConfig:
    """Text generated at the end of a complete run; `tokens: 0` turns it off."""

    tokens: int = 200
    temperature: float = 0.8
    top_k: int = 40
    prompt: str = "\n"


@dataclass(frozen=True)
class ResumeConfig:
    """Whether an existing run directory may be continued, and on what terms."""

    enabled: bool = False
    allow_inexact: bool = False


@dataclass(frozen=True)
class GateConfig:
    """A non-finite update is gated; more than `patience` gated updates in a row end the run."""

    patience: int = 10


class Design(Enum):
    """How the runs of a protocol belong together."""

    paired = "paired"
    """Every seed with every arm: arms are compared within seeds."""
    replicates = "replicates"
    """One arm at several seeds, or one run."""
    sweep = "sweep"
    """The same search space for every arm, to choose from."""


@dataclass(frozen=True)
class PlanConfig:
    """What a protocol declares before its first run; no run of it reads this.

    `arms` are compared in order, first minus others. `primary` is judged alone, `secondary` with Holm's
    adjustment. `model_source` is demanded of every run. `tuning_trials` is what each arm was given to choose its
    learning rate, on `tuning_seeds`, which must not be among `seeds`; empty: not declared. `sd_of_difference` (a guess,
    from earlier runs) lets `check` say what the plan can detect; `tokens_per_second` and `price_per_hour` let it
    project time and cost.
    """

    design: Design = Design.paired
    seeds: tuple[int, ...] = ()
    arms: tuple[str, ...] = ()
    primary: str = "final_val_loss"
    secondary: tuple[str, ...] = ()
    target_val_loss: float | None = None
    model_source: ModelSource | None = None
    tuning_trials: tuple[int, ...] = ()
    tuning_seeds: tuple[int, ...] = ()
    sd_of_difference: float | None = None
    tokens_per_second: float | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True)
class Config:
    """One run, complete and typed."""

    model: ModelConfig = MISSING
    optimizer: Recipe = MISSING
    schedule: ScheduleConfig = MISSING
    data: DataConfig = MISSING
    hardware: HardwareConfig = MISSING
    evaluation: EvaluationConfig = MISSING
    tracking: TrackingConfig = MISSING
    seed: int = 42
    precision: Precision = MISSING
    arm: str = MISSING
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    resume: ResumeConfig = field(default_factory=ResumeConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    stop_after_steps: int | None = None


DATA_SCHEMAS: dict[str, type[DataConfig]] = {
    schema.kind: schema
    for schema in (StdlibData, TextData, ShakespeareData, ShardData, PublishedShardData, SyntheticData)
}


def shipped(name: str) -> Path:
    """Folder `name` (`conf`, `multirun_protocols`): inside the package when installed, else beside it."""
    here = Path(__file__).resolve().parent
    return here / name if (here / name).is_dir() else here.parent / name


def cache_folder() -> Path:
    """Where downloads and remembered file hashes live: `$GPT2EXP_CACHE`, else `~/.cache/gpt2exp`."""
    chosen = os.environ.get("GPT2EXP_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "gpt2exp"
