"""Rules between configuration values; each line names the value found and what would be right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpt2exp.config import (
    DATA_SCHEMAS,
    Config,
    ModelSource,
    Order,
    Precision,
    Preflight,
    SpectralBackend,
    StdlibData,
    SyntheticData,
    Tokenizer,
)
from gpt2exp.derived import warmup_steps
from gpt2exp.engines.sql.forms import FORMS
from gpt2exp.optim.newton_schulz import NSPrecision
from gpt2exp.optim.orthogonalize import OrthogonalizerKind
from gpt2exp.optim.registry import optimizers
from gpt2exp.report.endpoints import ENDPOINTS

MAX_VOCABULARY = 65_535
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class EngineLimits:
    """What a hardware kind can do; `optimizers` None means every kind.

    `sql` marks the databases: one thread, the reference model stated as queries, and no form of some options.
    """

    precisions: tuple[Precision, ...]
    max_devices: int
    optimizers: tuple[str, ...] | None = None
    sql: bool = False


ENGINES = {
    "cpu": EngineLimits((Precision.fp32, Precision.fp64, Precision.bf16), max_devices=1),
    "xla_cpu": EngineLimits((Precision.fp32, Precision.bf16), max_devices=64),
    "tpu": EngineLimits((Precision.fp32, Precision.bf16), max_devices=8),
    "duckdb": EngineLimits((Precision.fp64,), max_devices=1, optimizers=tuple(FORMS), sql=True),
    "datafusion": EngineLimits((Precision.fp64,), max_devices=1, optimizers=tuple(FORMS), sql=True),
}


def cross_field_problems(cfg: Config, unsound: Sequence[str] = ()) -> list[str]:
    """Every value out of range and every broken rule, one line each.

    Args:
        cfg: the configuration.
        unsound: keys reported already; rules that read their section wait until those are right.
    """
    ranges = [(key, line) for key, line in _range_problems(cfg) if key not in unsound]
    sections = {key.partition(".")[0] for key in [*unsound, *(key for key, _ in ranges)]}
    rules = (rule for rule, reads in RULES.items() if sections.isdisjoint(reads))
    return [*(line for _, line in ranges), *(line for rule in rules for line in rule(cfg))]


def _range_problems(cfg: Config) -> Iterator[tuple[str, str]]:
    """Single values out of range, by key; the rules between values divide by some of these."""
    for least, keys in AT_LEAST.items():
        for key in keys:
            value = _get(cfg, key)
            if isinstance(value, int) and value < least:
                yield key, f"{key}={value}: must be at least {least}"
    if cfg.seed >= 2**63:
        yield "seed", f"seed={cfg.seed}: must be below 2^63"
    if cfg.sample.temperature <= 0:
        yield "sample.temperature", f"sample.temperature={cfg.sample.temperature:g}: must be greater than 0"
    if not 0 <= cfg.schedule.min_lr_ratio <= 1:
        key = "schedule.min_lr_ratio"
        yield key, f"{key}={cfg.schedule.min_lr_ratio:g}: must lie in [0, 1]"
    fraction = _get(cfg, "data.val_fraction")
    if isinstance(fraction, float) and not 0 < fraction < 1:
        yield "data.val_fraction", f"data.val_fraction={fraction:g}: must lie between 0 and 1"


AT_LEAST = {
    1: ("model.n_layer", "model.n_head", "model.n_embd", "model.block_size", "model.vocab_size",
        "schedule.num_steps", "schedule.tokens_per_step", "schedule.context_length", "hardware.devices",
        "hardware.micro_batch_size", "hardware.threads", "hardware.max_rows", "evaluation.every", "checkpoint.every",
        "logging.log_every", "stop_after_steps", "data.window_tokens", "data.vocab_size",
        "data.train_tokens", "data.val_tokens", "data.val_percent", "sample.top_k", "tracking.every",
        "tracking.token_error_every", "data.train_shards", "tracking.probe_tokens", "tracking.max_pending"),
    0: ("seed", "schedule.warmup_steps", "evaluation.tokens", "checkpoint.keep", "sample.tokens",
        "gate.patience"),
}  # fmt: skip


def _get(cfg: object, key: str) -> object:
    for part in key.split("."):
        cfg = getattr(cfg, part, None)
    return cfg


def _model(cfg: Config) -> Iterator[str]:
    model = cfg.model
    if model.n_embd % model.n_head:
        yield f"model.n_head={model.n_head}: must divide model.n_embd={model.n_embd}"
    if model.vocab_size > MAX_VOCABULARY:
        yield f"model.vocab_size={model.vocab_size}: at most {MAX_VOCABULARY} fit the uint16 token format"
    if model.source is ModelSource.llmc and not model.bias:
        yield "model.bias=false: upstream's GPT always has biases; use model.source=reference"
    if model.source is ModelSource.reference and model.path is not None:
        yield f"model.path={model.path}: only model.source=llmc reads a file"


def _schedule(cfg: Config) -> Iterator[str]:
    schedule = cfg.schedule
    context, tokens = schedule.context_length, schedule.tokens_per_step
    if context > cfg.model.block_size:
        yield f"schedule.context_length={context}: at most model.block_size={cfg.model.block_size}"
    if tokens % context:
        yield f"schedule.tokens_per_step={tokens}: must be a multiple of schedule.context_length={context}"
    if (schedule.warmup_steps is None) == (schedule.warmup_fraction is None):
        yield (
            f"schedule.warmup_steps={_shown(schedule.warmup_steps)} and schedule.warmup_fraction="
            f"{_shown(schedule.warmup_fraction)}: give exactly one, null the other"
        )
        return
    if schedule.warmup_fraction is not None and not 0 <= schedule.warmup_fraction < 1:
        yield f"schedule.warmup_fraction={schedule.warmup_fraction:g}: must lie in [0, 1)"
    elif warmup_steps(schedule) >= schedule.num_steps:
        yield (
            f"schedule.warmup_steps={warmup_steps(schedule)}: must be less than schedule.num_steps={schedule.num_steps}"
        )


def _shown(value: object) -> str:
    return "null" if value is None else str(value)


def _batch(cfg: Config) -> Iterator[str]:
    rows, hardware = cfg.schedule.tokens_per_step // cfg.schedule.context_length, cfg.hardware
    micro = hardware.micro_batch_size or 1
    if rows and rows % (hardware.devices * micro):
        yield (
            f"hardware.micro_batch_size={micro} x hardware.devices={hardware.devices}: must divide the "
            f"{rows} rows of a step (tokens_per_step / context_length)"
        )


def _data(cfg: Config) -> Iterator[str]:
    data, schedule = cfg.data, cfg.schedule
    if DATA_SCHEMAS.get(data.kind) is not type(data):
        yield f"data.kind={data.kind}: is not set alone; choose data=<option>"
    vocabulary = data_vocabulary(cfg)
    if vocabulary is not None and vocabulary > cfg.model.vocab_size:
        yield (
            f"model.vocab_size={cfg.model.vocab_size}: smaller than the vocabulary of data={data.kind} ({vocabulary})"
        )
    if data.order is Order.exact_sequential and data.window_tokens is not None:
        yield f"data.window_tokens={data.window_tokens}: only data.order=upstream_python reads it"
    window = data.window_tokens
    if window and (schedule.tokens_per_step % window or window % schedule.context_length):
        yield (
            f"data.window_tokens={window}: must divide schedule.tokens_per_step={schedule.tokens_per_step} "
            f"and be a multiple of schedule.context_length={schedule.context_length}"
        )
    if isinstance(data, StdlibData) and data.val_percent >= 100:
        yield f"data.val_percent={data.val_percent}: must be below 100"
    if isinstance(data, StdlibData) and data.tokenizer is Tokenizer.chars:
        yield "data.tokenizer=chars: data=stdlib is read as bytes, gpt2 or gpt2_bytes"


def data_vocabulary(cfg: Config) -> int | None:
    """Vocabulary of the data as far as the configuration tells: characters are known after reading."""
    declared = getattr(cfg.data, "vocab_size", None)
    if declared is not None:
        return int(declared)
    sizes = {Tokenizer.bytes: 256, Tokenizer.gpt2: 50_257, Tokenizer.gpt2_bytes: 50_257}
    return sizes.get(getattr(cfg.data, "tokenizer", Tokenizer.chars))


def _evaluation(cfg: Config) -> Iterator[str]:
    evaluation, context = cfg.evaluation, cfg.schedule.context_length
    if evaluation.every is None:
        return
    if evaluation.tokens < 1 or evaluation.tokens % context:
        yield (
            f"evaluation.tokens={evaluation.tokens}: must be a positive multiple of schedule.context_length={context}"
        )
    if isinstance(cfg.data, SyntheticData) and evaluation.tokens >= cfg.data.val_tokens:
        yield (
            f"evaluation.tokens={evaluation.tokens}: the split has {cfg.data.val_tokens} tokens, so at most "
            f"{cfg.data.val_tokens - 1} targets"
        )


def _tracking(cfg: Config) -> Iterator[str]:
    tracking, context = cfg.tracking, cfg.schedule.context_length
    if tracking.every is None:
        return
    for step in tracking.also_at:
        if step < 0:
            yield f"tracking.also_at={list(tracking.also_at)}: steps are counted from 0"
    if tracking.probe_tokens is not None and tracking.probe_tokens % context:
        yield (
            f"tracking.probe_tokens={tracking.probe_tokens}: must be a multiple of schedule.context_length={context}"
        )
    if tracking.randomize and tracking.backend is not SpectralBackend.weightwatcher:
        yield (
            f"tracking.randomize=true: tracking.backend={tracking.backend.name} has no randomisation; "
            "use tracking.backend=weightwatcher"
        )


def _optimizer(cfg: Config) -> Iterator[str]:
    optimizer = optimizers().get(cfg.optimizer.kind)
    if optimizer is None or optimizer.recipe is not type(cfg.optimizer):
        yield f"optimizer.kind={cfg.optimizer.kind}: is not set alone; choose optimizer=<option>"
    else:
        yield from optimizer.check(cfg.optimizer)


def _engine(cfg: Config) -> Iterator[str]:
    kind = cfg.hardware.kind
    if kind not in ENGINES:
        yield f"hardware.kind={kind}: unknown (known: {', '.join(ENGINES)})"
        return
    limits = ENGINES[kind]
    if cfg.precision not in limits.precisions:
        offered = ", ".join(precision.name for precision in limits.precisions)
        yield f"precision={cfg.precision.name}: hardware={kind} offers {offered}"
    if cfg.hardware.devices > limits.max_devices:
        yield f"hardware.devices={cfg.hardware.devices}: hardware={kind} has at most {limits.max_devices}"
    if limits.optimizers is not None and cfg.optimizer.kind not in limits.optimizers:
        yield (
            f"hardware={kind} has no form of optimizer '{cfg.optimizer.kind}' "
            f"(has: {', '.join(limits.optimizers)}); use hardware=cpu"
        )
    if kind != "cpu" and cfg.hardware.orthogonalizer is OrthogonalizerKind.eigh:
        yield f"hardware.orthogonalizer=eigh: hardware={kind} computes the plain iteration only; use ns or auto"
    precision = getattr(cfg.optimizer, "ns_precision", NSPrecision.fp32)
    if cfg.hardware.orthogonalizer is OrthogonalizerKind.eigh and precision is NSPrecision.bf16:
        yield "hardware.orthogonalizer=eigh: has no bf16 form for optimizer.ns_precision=bf16; use auto or ns"
    if limits.sql:
        yield from _sql(cfg)


def _sql(cfg: Config) -> Iterator[str]:
    if cfg.hardware.preflight is not Preflight.off:
        yield f"hardware.preflight={cfg.hardware.preflight.name}: hardware={cfg.hardware.kind} has none; use off"
    kind = cfg.hardware.kind
    if cfg.model.source is not ModelSource.reference:
        yield f"model.source={cfg.model.source.name}: hardware={kind} states the model itself; use reference"
    if cfg.hardware.threads not in (None, 1):
        yield f"hardware.threads={cfg.hardware.threads}: hardware={kind} adds up in one thread, in a fixed order"
    deadline = cfg.hardware.step_deadline_seconds
    if deadline is not None and deadline <= 0:
        yield f"hardware.step_deadline_seconds={deadline:g}: must be greater than 0"
    if cfg.optimizer.kind in FORMS:
        yield from FORMS[cfg.optimizer.kind](cfg.optimizer)


def _plan(cfg: Config) -> Iterator[str]:
    plan = cfg.plan
    for key, name in (("primary", plan.primary), *(("secondary", name) for name in plan.secondary)):
        if name not in ENDPOINTS:
            yield f"plan.{key}={name}: unknown endpoint (known: {', '.join(ENDPOINTS)})"
        elif name.endswith("_to_target") and plan.target_val_loss is None:
            yield f"plan.{key}={name}: needs plan.target_val_loss"
    reused = sorted({*plan.seeds} & {*plan.tuning_seeds})
    if reused:
        yield (
            f"plan.tuning_seeds={list(plan.tuning_seeds)}: seed {reused[0]} is reported too; what chose the "
            "learning rate must not judge it"
        )
    if plan.tuning_trials and len(plan.tuning_trials) != len(plan.arms):
        yield f"plan.tuning_trials={list(plan.tuning_trials)}: one count an arm ({len(plan.arms)})"
    for key in ("sd_of_difference", "tokens_per_second", "price_per_hour"):
        value = getattr(plan, key)
        if value is not None and value <= 0:
            yield f"plan.{key}={value:g}: must be greater than 0"


def _names(cfg: Config) -> Iterator[str]:
    names = {"optimizer.label": cfg.optimizer.label, "model.label": cfg.model.label}
    if cfg.arm != cfg.optimizer.label:
        names["arm"] = cfg.arm
    for key, value in names.items():
        if not NAME.fullmatch(value):
            yield f"{key}={value!r}: use letters, digits, '.', '_' and '-', at most 64"


RULES: dict[Callable[[Config], Iterator[str]], tuple[str, ...]] = {
    _model: ("model",),
    _schedule: ("model", "schedule"),
    _batch: ("schedule", "hardware"),
    _data: ("model", "schedule", "data"),
    _evaluation: ("schedule", "data", "evaluation"),
    _tracking: ("schedule", "tracking"),
    _optimizer: ("optimizer",),
    _engine: ("hardware", "optimizer", "model"),
    _plan: (),
    _names: (),
}
"""Rules and the sections that each reads."""
