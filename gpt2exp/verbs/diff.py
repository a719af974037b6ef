"""diff A B: what differs between two runs or configuration files, by tier.

Usage: gpt2exp diff A B

Training and measurement are science: exit 0 when they agree, 1 when they differ. Execution and recorded
differences are shown and do not count. Two runs are compared by what they resolved (hashes of the corpus and
of the model file included); as soon as one side is a configuration file, by configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpt2exp import rundir
from gpt2exp.compose import load_config
from gpt2exp.config import Config
from gpt2exp.identity import InputRecord, differing, identify, plain
from gpt2exp.verbs_help import positional

SCIENCE = ("training", "measurement")
UNRESOLVED = InputRecord(None, "", "", "")


def main(arguments: list[str]) -> int:
    """Print the differences; 0 = same science."""
    a, b = (Path(argument) for argument in positional(arguments, __doc__, at_least=2, at_most=2))
    by_run = rundir.is_run(a) and rundir.is_run(b)
    tiers_a, tiers_b = (tiers_of_run(p) if by_run else tiers_of_config(load_config(p)) for p in (a, b))
    found = {tier: differing(tiers_a[tier], tiers_b[tier]) for tier in tiers_a}
    for tier, rows in found.items():
        print_tier(tier, rows)
    same = not any(found[tier] for tier in SCIENCE)
    print("same science" if same else "different science")
    return 0 if same else 1


def tiers_of_run(path: Path) -> dict[str, dict[str, Any]]:
    """The tiers that a run recorded, its group choices first."""
    record = rundir.read_record(path)
    skip = {"choices", *SCIENCE, "execution", "attempts", "digests", "updated", "corpus"}
    return {
        "choices": record["choices"],
        **{tier: record[tier] for tier in (*SCIENCE, "execution")},
        "recorded": {**{k: v for k, v in record.items() if k not in skip}, **recorded_of(load_config(path))},
    }


def tiers_of_config(cfg: Config) -> dict[str, dict[str, Any]]:
    """The tiers as far as a configuration decides them; data are named by their settings, not by hash."""
    identity = identify(cfg, UNRESOLVED, {key: v for key, v in plain(cfg.hardware).items() if key != "kind"})
    training = {**identity.training, "data": {**identity.training["data"], **plain(cfg.data)}}
    return {
        "training": training,
        "measurement": identity.measurement,
        "execution": identity.execution,
        "recorded": recorded_of(cfg),
    }


def recorded_of(cfg: Config) -> dict[str, Any]:
    """Configuration that changes no number."""
    return {
        "arm": cfg.arm,
        "labels": [cfg.model.label, cfg.optimizer.label, cfg.schedule.label],
        **{name: plain(getattr(cfg, name)) for name in ("checkpoint", "logging", "sample", "resume", "gate")},
        "stop_after_steps": cfg.stop_after_steps,
    }


def print_tier(tier: str, rows: list[tuple[str, Any, Any]]) -> None:
    """One section; nothing for a tier without differences."""
    if not rows:
        return
    print(tier)
    width = max(len(key) for key, _, _ in rows)
    for key, left, right in rows:
        print(f"  {key:<{width}}  {left} -> {right}")
