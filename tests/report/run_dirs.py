"""Run directories made by hand: records and digests as gpt2exp writes them, rows as a test wants them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpt2exp.assembly import yaml_of
from gpt2exp.compose import compose
from gpt2exp.config import Config, PlanConfig
from gpt2exp.identity import InputRecord, identify
from gpt2exp.protocol.plan import make_plan, publish

MUONCLIP, ADAMW = "muonclip_nano", "adamw_nano"
OVERRIDES = (
    "model=tiny", "schedule.num_steps=4", "schedule.warmup_steps=1", "schedule.tokens_per_step=128",
    "schedule.context_length=32", "data=synthetic", "data.train_tokens=4096", "data.val_tokens=1025",
    "evaluation.every=2", "evaluation.tokens=256", "sample.tokens=0", "tracking=off", "hardware.threads=1",
)  # fmt: skip
CORPUS = "a1" * 32
INPUTS = InputRecord(None, CORPUS, "b2" * 32, "c3" * 32)
EXECUTION: Mapping[str, Any] = {
    "engine": "torch", "device": "cpu", "device_model": "Some CPU", "devices": 1, "ranks": 1, "threads": 1,
    "orthogonalizer": "eigh", "isa": "AVX2", "torch": "2.13.0+cpu", "micro_batch_size": 4, "numpy": "2.4.6",
}  # fmt: skip
TARGET = 4.0
LOSSES = (5.5, 4.5, 3.5)
"""At steps 0, 2 and 4."""


def config(arm: str, seed: int, *overrides: str, plan: PlanConfig | None = None) -> Config:
    """The configuration of one run."""
    cfg = replace(composed(arm, *overrides), seed=seed)
    return cfg if plan is None else replace(cfg, plan=plan)


@lru_cache
def composed(arm: str, *overrides: str) -> Config:
    """Composed once, whatever the seed and the plan."""
    return compose([*OVERRIDES, f"optimizer={arm}", *overrides])


written = lru_cache(yaml_of)
"""`config.yaml`, made once for a configuration."""


def write_run(
    path: Path,
    cfg: Config,
    losses: Sequence[float | None] = LOSSES,
    *,
    status: str = "complete",
    inputs: InputRecord = INPUTS,
    execution: Mapping[str, Any] = EXECUTION,
    seconds: float = 1.0,
    gated: Sequence[int] = (),
    **record: Any,
) -> Path:
    """A run that was evaluated every second step with `losses`, and ends at the last of them."""
    path.mkdir(parents=True)
    identity = identify(cfg, inputs, execution)
    content = {
        "schema": 1, "status": status, "arm": cfg.arm, "seed": cfg.seed, "digests": identity.digests,
        "initial_weights_sha256": f"{cfg.seed:064d}", "training": identity.training,
        "measurement": identity.measurement, "execution": identity.execution, "host": "here",
        "attempts": [{"attempt": 1, "host": "here", "execution": identity.execution}], "reason": None, **record,
    }  # fmt: skip
    (path / "run.json").write_text(json.dumps(content))
    (path / "config.yaml").write_text(written(cfg))
    steps = [2 * i for i in range(len(losses))]
    write_rows(path / "evaluations.jsonl", [_evaluation(cfg, *point) for point in zip(steps, losses, strict=True)])
    updates = range(1, steps[-1] + 1)
    write_rows(path / "metrics.jsonl", [_update(cfg, step, step in gated) for step in updates])
    write_rows(path / "timing.jsonl", [{"step": s, "attempt": 1, "update": seconds} for s in (0, *updates)])
    return path


def write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as one line of JSON each."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _evaluation(cfg: Config, step: int, loss: float | None) -> dict[str, Any]:
    tokens = step * cfg.schedule.tokens_per_step
    error = None if loss is None else loss / 10
    return {"step": step, "tokens": tokens, "val_loss": loss, "token_error": error, "target_tokens": 256}


def _update(cfg: Config, step: int, gated: bool) -> dict[str, Any]:
    row = {"step": step, "tokens": step * cfg.schedule.tokens_per_step, "loss": 5.0 - 0.1 * step, "grad_norm": 2.0}
    row |= {"clip_coef": 0.5, "gated": gated}
    return row | ({"qk_clipped": 0} if cfg.optimizer.kind == "muonclip" else {})


def plan_of(arms: Iterable[str], seeds: Iterable[int], **declared: Any) -> PlanConfig:
    """What a protocol's YAML would say in its `plan`."""
    return PlanConfig(seeds=tuple(seeds), arms=tuple(arms), target_val_loss=TARGET, **declared)


def write_plan(folder: Path, arms: Sequence[str], seeds: Sequence[int], **declared: Any) -> dict[str, Config]:
    """`protocol.json` of seeds x arms; the runs' configurations by folder."""
    plan = plan_of(arms, seeds, **declared)
    planned = [(f"seed={seed}/{arm}", config(arm, seed, plan=plan)) for seed in seeds for arm in arms]
    publish(make_plan("by_hand", planned), folder)
    return dict(planned)


def write_protocol(
    folder: Path,
    table: Mapping[str, Mapping[int, Sequence[float | None]]],
    *,
    changed: Mapping[str, Mapping[str, Any]] | None = None,
    **declared: Any,
) -> Path:
    """A protocol whose runs' losses are `table[arm][seed]`.

    `changed` holds other arguments of `write_run` by folder, `declared` other fields of the plan.
    """
    seeds = list(next(iter(table.values())))
    planned = write_plan(folder, list(table), seeds, **declared)
    for place, cfg in planned.items():
        write_run(folder / place, cfg, table[cfg.arm][cfg.seed], **(changed or {}).get(place, {}))
    return folder


def edit(run: Path, key: str, value: Any) -> None:
    """Change one key of `run.json`, dotted, and nothing else."""
    record = json.loads((run / "run.json").read_text())
    *outer, last = key.split(".")
    section = record
    for name in outer:
        section = section[name]
    section[last] = value(section[last]) if callable(value) else value
    (run / "run.json").write_text(json.dumps(record))


def one_byte_changed(digest: str) -> str:
    """The same hash but for one byte in its middle."""
    return digest[:32] + ("0" if digest[32] != "0" else "1") + digest[33:]
