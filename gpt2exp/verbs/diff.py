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
from gpt2exp.errors import StorageError
from gpt2exp.identity import InputRecord, differing, identify, plain, without
from gpt2exp.verbs_help import positional

SCIENCE = ("training", "measurement")
RECORDED_KEYS = ("arm", "checkpoint", "logging", "sample", "resume", "gate", "stop_after_steps")
TRACKING_STORAGE = ("keep_weights", "max_pending")
LEFT_OUT = ("digests", "corpus", "attempts", "updated")
"""What a record repeats in short, or holds of times."""
UNRESOLVED = InputRecord(None, "", "", "")

Tiers = dict[str, dict[str, Any]]


def main(arguments: list[str]) -> int:
    """Print the differences; 0 = same science."""
    a, b = (Path(argument) for argument in positional(arguments, __doc__, at_least=2, at_most=2))
    tiers = tiers_of_run if rundir.is_run(a) and rundir.is_run(b) else tiers_of_config
    tiers_a, tiers_b = tiers(a), tiers(b)
    found = {tier: differing(tiers_a[tier], tiers_b[tier]) for tier in tiers_a}
    for tier, rows in found.items():
        print_tier(tier, rows)
    same = not any(found[tier] for tier in SCIENCE)
    print("same science" if same else "different science")
    return 0 if same else 1


def tiers_of_run(path: Path) -> Tiers:
    """The tiers that a run recorded, its group choices first.

    Raises:
        StorageError: the record lacks one.
    """
    record = rundir.read_record(path)
    tiers = ("choices", *SCIENCE, "execution")
    try:
        found: Tiers = {tier: record[tier] for tier in tiers}
        overrides = dict(text.partition("=")[::2] for text in record["overrides"])
    except KeyError as error:
        raise StorageError(f"{path}: run.json has no {error}: damaged, or of another version") from None
    rest = without(record, *tiers, *LEFT_OUT, "overrides")
    return {**found, "recorded": {**rest, **recorded_of(load_config(path)), "overrides": overrides}}


def tiers_of_config(path: Path) -> Tiers:
    """The tiers as far as a configuration decides them; data are named by their settings, not by hash."""
    cfg = load_config(path)
    identity = identify(cfg, UNRESOLVED, without(plain(cfg.hardware), "kind"))
    return {
        "training": {**identity.training, "data": plain(cfg.data)},
        "measurement": identity.measurement,
        "execution": identity.execution,
        "recorded": recorded_of(cfg),
    }


def recorded_of(cfg: Config) -> dict[str, Any]:
    """Configuration that changes no number."""
    labels = {group: getattr(cfg, group).label for group in ("model", "optimizer", "schedule")}
    storage = {name: getattr(cfg.tracking, name) for name in TRACKING_STORAGE}
    return {"label": labels, "tracking": storage, **{name: plain(getattr(cfg, name)) for name in RECORDED_KEYS}}


def print_tier(tier: str, rows: list[tuple[str, Any, Any]]) -> None:
    """One section; nothing for a tier without differences."""
    if not rows:
        return
    print(tier)
    width = max(len(key) for key, _, _ in rows)
    for key, left, right in rows:
        print(f"  {key:<{width}}  {left} -> {right}")
