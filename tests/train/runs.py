"""Small real runs, in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpt2exp.compose import compose, load_config
from gpt2exp.config import Config
from gpt2exp.experiment import Request, run

OVERRIDES = [
    "model=tiny", "model.n_layer=1", "model.n_embd=16", "model.vocab_size=64", "data=synthetic",
    "data.train_tokens=20000", "data.val_tokens=2000", "schedule.num_steps=12", "schedule.context_length=16",
    "schedule.tokens_per_step=64", "schedule.warmup_steps=3", "evaluation.every=5", "evaluation.tokens=256",
    "hardware.threads=1", "checkpoint.every=4", "logging.log_every=3", "tracking=off",
]  # fmt: skip


def config(*overrides: str) -> Config:
    return compose([*OVERRIDES, *overrides])


def start(folder: Path, *overrides: str) -> float | None:
    return run(config(*overrides), Request(folder, {}, tuple(overrides)))


def resume(folder: Path, *overrides: str) -> float | None:
    cfg = load_config(folder, ["stop_after_steps=null", *overrides])
    cfg = replace(cfg, resume=replace(cfg.resume, enabled=True))
    return run(cfg, Request(folder, {}, ()))


DETERMINISTIC = (
    "metrics.jsonl",
    "evaluations.jsonl",
    "checkpoints/step_000012/weights.safetensors",
    "checkpoints/step_000012/slots.safetensors",
)


TRACKED = ("tracking.every=5", "tracking.token_error_every=3", "tracking.backend=fast")
SPECTRA = [f"spectra/step_{step:06d}.npz" for step in (0, 5, 10, 12)]
TABLES = ("spectra.csv", "spectra_summary.csv", "spectra_correlations.csv")


def tracked_results(folder: Path) -> dict[str, object]:
    """The same for what is tracked; the tables without their first column, the directory's name."""
    tables = {name: [line.split(",", 1)[1] for line in (folder / name).read_text().splitlines()] for name in TABLES}
    return {**{name: (folder / name).read_bytes() for name in ("tracking.jsonl", *SPECTRA)}, **tables}


def results(folder: Path) -> dict[str, bytes]:
    """Everything that must not depend on how often a run was stopped."""
    return {name: (folder / name).read_bytes() for name in DETERMINISTIC}
