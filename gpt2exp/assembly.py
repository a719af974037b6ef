"""Resolve a run's inputs and build its engine: where the rooms meet."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import gpt2exp
from gpt2exp.config import Config, HardwareConfig, Precision
from gpt2exp.data.corpora import Corpus, load_corpus
from gpt2exp.data.windows import TrainingWindows
from gpt2exp.derived import derive, probe_tokens
from gpt2exp.engines.base import Engine, weights_digest
from gpt2exp.errors import ConfigError
from gpt2exp.experiment import Request
from gpt2exp.identity import Identity, InputRecord, needs_upstream, plain, readable_ids
from gpt2exp.models.upstream import SourceFile, locate
from gpt2exp.optim.registry import optimizers
from gpt2exp.preflight.memory import micro_batch_size
from gpt2exp.projection import check_disk
from gpt2exp.rules import ENGINES
from gpt2exp.spectral.backends import label
from gpt2exp.train.evaluate import Validation

VERSIONED = ("torch", "numpy", "hydra-core", "omegaconf", "safetensors", "tiktoken")


@dataclass(frozen=True)
class Inputs:
    """What a run reads: the model's source, the corpus, and which tokens make each step."""

    source: SourceFile | None
    corpus: Corpus
    windows: TrainingWindows
    record: InputRecord

    @property
    def notes(self) -> list[str]:
        """What a person should know about the inputs."""
        lines = [f"model file {self.source.path} (SHA256 {self.source.sha256[:12]}...)"] if self.source else []
        train, val = self.corpus.train.num_tokens, self.corpus.val.num_tokens
        return [*lines, f"corpus {self.corpus.name}: {train:,} training and {val:,} validation tokens"]


@dataclass(frozen=True)
class Parts:
    """Everything the loop needs."""

    inputs: Inputs
    engine: Engine
    validation: Validation | None
    probe: Validation | None


def assemble(cfg: Config, directory: Path) -> Parts:
    """Inputs, checks against them, engine.

    Raises:
        Gpt2ExpError: an input is missing, broken or too small for the budget.
    """
    slots = slot_count(cfg)
    check_disk(cfg, slots, directory)
    rows = rows_at_once(cfg)
    inputs = resolve(cfg)
    corpus, at_once = inputs.corpus, rows * cfg.hardware.devices
    engine = (sql_engine if ENGINES[cfg.hardware.kind].sql else torch_engine)(cfg, inputs.source, rows)
    return Parts(inputs, engine, validation(cfg, corpus, at_once), probe(cfg, corpus, at_once))


def rows_at_once(cfg: Config) -> int:
    """Rows of a micro-batch on one device.

    Raises:
        RefusedError: even one row is too much for SQL.
    """
    if not ENGINES[cfg.hardware.kind].sql:
        return micro_batch_size(cfg)
    from gpt2exp.engines.sql import limits

    rows = cfg.hardware.micro_batch_size or limits.fitting_rows(cfg)
    note = limits.check_size(cfg, rows)
    if note:
        print(note, flush=True)
    return rows


def resolve(cfg: Config) -> Inputs:
    """Find and verify the model file and the corpus, and see that the budget fits."""
    source = locate(cfg.model.path) if needs_upstream(cfg) else None
    corpus = load_corpus(cfg.data)
    schedule = cfg.schedule
    windows = TrainingWindows(
        corpus.train,
        cfg.data.order,
        schedule.tokens_per_step,
        schedule.context_length,
        cfg.data.window_tokens,
    )
    problems = budget_problems(cfg, corpus, windows)
    if problems:
        raise ConfigError(problems)
    record = InputRecord(
        source.sha256 if source else None,
        corpus.digest,
        corpus.tokenizer_digest,
        windows.order_digest,
        probe_digest(cfg, corpus),
        label(cfg.tracking.backend.name) if cfg.tracking.every is not None else None,
    )
    return Inputs(source, corpus, windows, record)


def budget_problems(cfg: Config, corpus: Corpus, windows: TrainingWindows) -> list[str]:
    """Rules that need the corpus: vocabulary, horizon, evaluation inside the split."""
    problems = []
    if corpus.vocab_size > cfg.model.vocab_size:
        problems.append(f"model.vocab_size={cfg.model.vocab_size}: the corpus has a vocabulary of {corpus.vocab_size}")
    steps = cfg.schedule.num_steps
    if steps > windows.horizon and not cfg.data.allow_repeat:
        problems.append(
            f"schedule.num_steps={steps}: the training split has {corpus.train.num_tokens:,} tokens and wraps "
            f"at update {windows.horizon:,}; set schedule.num_steps={windows.horizon}, give more data, or "
            "accept repeats with data.allow_repeat=true"
        )
    if cfg.evaluation.every is not None and cfg.evaluation.tokens >= corpus.val.num_tokens:
        problems.append(
            f"evaluation.tokens={cfg.evaluation.tokens}: the validation split has {corpus.val.num_tokens:,} "
            "tokens, one more than the targets is needed"
        )
    if cfg.tracking.probe_tokens is not None and probe_tokens(cfg) >= corpus.val.num_tokens:
        problems.append(
            f"tracking.probe_tokens={probe_tokens(cfg)}: the validation split has {corpus.val.num_tokens:,} tokens, "
            "one more than the targets is needed"
        )
    return problems


def probe(cfg: Config, corpus: Corpus, rows: int) -> Validation | None:
    """What the token error is taken from at tracked steps without an evaluation, or None."""
    tokens = probe_tokens(cfg)
    return Validation(corpus.val, tokens, cfg.schedule.context_length, rows) if tokens else None


def probe_digest(cfg: Config, corpus: Corpus) -> str | None:
    """SHA256 of the probe's tokens as they are read."""
    tokens = probe_tokens(cfg)
    return hashlib.sha256(corpus.val.read(0, tokens + 1).tobytes()).hexdigest() if tokens else None


def validation(cfg: Config, corpus: Corpus, rows: int) -> Validation | None:
    """The run's validation, or None where it is off."""
    if cfg.evaluation.every is None:
        return None
    return Validation(corpus.val, cfg.evaluation.tokens, cfg.schedule.context_length, rows)


def slot_count(cfg: Config) -> int:
    """Optimizer state tensors per parameter, at most."""
    groups = optimizers()[cfg.optimizer.kind].groups(cfg.optimizer, cfg.model.n_head)
    return max(len(group.rule.slots) for group in groups)


def torch_engine(cfg: Config, source: SourceFile | None, rows: int) -> Engine:
    """Build the model at its seed and the PyTorch engine around it."""
    from gpt2exp.engines.torch.deferred import DeferredEngine
    from gpt2exp.engines.torch.engine import TorchEngine
    from gpt2exp.models.build import build

    optimizer, backend = optimizers()[cfg.optimizer.kind], torch_backend(cfg.hardware, cfg.precision)
    return (TorchEngine if cfg.hardware.kind == "cpu" else DeferredEngine)(
        build(cfg.model, cfg.seed, source),
        optimizer.groups(cfg.optimizer, cfg.model.n_head),
        backend,
        micro_batch_size=rows,
        clip=optimizer.clip(cfg.optimizer),
        qk_clip=optimizer.qk_clip(cfg.optimizer),
        measure_every=cfg.logging.log_every,
    )


def sql_engine(cfg: Config, source: SourceFile | None, rows: int) -> Engine:
    """The SQL engine from the weights that the PyTorch model starts with.

    Raises:
        RefusedError: the sql extra is missing.
    """
    from gpt2exp.engines.sql.engine import SqlEngine
    from gpt2exp.engines.sql.hosts import build_host
    from gpt2exp.models.build import build

    optimizer = optimizers()[cfg.optimizer.kind]
    parameters = build(cfg.model, cfg.seed, source).double().named_parameters()
    return SqlEngine(
        cfg.model,
        {name: p.detach().numpy().copy() for name, p in parameters},
        optimizer.groups(cfg.optimizer, cfg.model.n_head),
        build_host(cfg.hardware.kind, cfg.hardware.step_deadline_seconds),
        micro_batch_size=rows,
        clip=optimizer.clip(cfg.optimizer),
        qk_clip=optimizer.qk_clip(cfg.optimizer),
        measure_every=cfg.logging.log_every,
        replay=cfg.hardware.replay,
    )


def torch_backend(hardware: HardwareConfig, precision: Precision) -> Any:
    """The device of a hardware kind.

    Raises:
        RefusedError: it is not there, or this process or environment cannot use it.
    """
    if hardware.kind == "cpu":
        from gpt2exp.engines.torch.backends.local import LocalBackend

        return LocalBackend(precision, hardware.threads, hardware.orthogonalizer)
    from gpt2exp.engines.torch.backends.xla import XlaBackend

    return XlaBackend(hardware.kind, hardware.devices, precision)


def record_of(cfg: Config, request: Request, parts: Parts, identity: Identity) -> dict[str, Any]:
    """The first content of `run.json`."""
    return {
        "arm": cfg.arm,
        "seed": cfg.seed,
        "ids": readable_ids(cfg),
        "digests": identity.digests,
        "initial_weights_sha256": weights_digest(parts.engine.weights()),
        "training": identity.training,
        "measurement": identity.measurement,
        "execution": identity.execution,
        "choices": dict(request.choices),
        "overrides": list(request.overrides),
        "rows_per_step": derive(cfg).rows_per_step,
        "corpus": plain(parts.inputs.corpus.record),
        "model_file": str(parts.inputs.source.path) if parts.inputs.source else None,
        "host": platform.node(),
        "python": platform.python_version(),
        "versions": {"gpt2exp": gpt2exp.__version__, **{name: installed(name) for name in VERSIONED}},
    }


def installed(distribution: str) -> str | None:
    """Version of an installed distribution."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def yaml_of(cfg: Config) -> str:
    """The resolved configuration as `config.yaml`."""
    return OmegaConf.to_yaml(OmegaConf.create(plain(cfg)))
