"""What a protocol declares, what its runs will be, and whether the two agree; all before the first run starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2exp import atomic
from gpt2exp.config import Config, Design, PlanConfig
from gpt2exp.derived import derive
from gpt2exp.errors import ConfigError, RefusedError, StorageError
from gpt2exp.identity import InputRecord, differing, digest, identify, plain, without
from gpt2exp.rundir import Status, is_run, read_record

FILE = "protocol.json"
FORMAT = 1
UNRESOLVED = InputRecord(None, "", "", "")
"""A plan is made before the corpus is read: its fingerprint holds settings, each run's identity the content."""
PER_RUN = ("seed", "optimizer", "arm", "plan", "resume", "stop_after_steps")
"""Sections in which the runs of a protocol may differ, or that are no part of what it compares."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan: where it goes below the protocol's directory, and what it is."""

    folder: str
    arm: str
    seed: int
    digest: str


@dataclass(frozen=True)
class Plan:
    """A protocol's declaration and its runs, in the order in which they are run."""

    name: str
    declared: PlanConfig
    runs: tuple[PlannedRun, ...]
    tokens_per_run: int

    @property
    def record(self) -> dict[str, Any]:
        """As `protocol.json` holds it."""
        content = {
            "protocol": self.name,
            "declared": plain(self.declared),
            "tokens_per_run": self.tokens_per_run,
            "runs": [plain(run) for run in self.runs],
        }
        return {"format": FORMAT, "fingerprint": digest(content), **content}

    @property
    def fingerprint(self) -> str:
        """SHA256 over all of it."""
        return str(self.record["fingerprint"])


def make_plan(name: str, planned: Sequence[tuple[str, Config]]) -> Plan:
    """The plan of composed runs, each with its folder.

    Raises:
        ConfigError: the runs are not what the protocol declares, or differ in more than seed and optimizer.
    """
    declared = planned[0][1].plan
    problems = [*design_problems(name, declared, [cfg for _, cfg in planned]), *difference_problems(planned)]
    if problems:
        raise ConfigError(problems)
    runs = tuple(PlannedRun(folder, cfg.arm, cfg.seed, run_digest(cfg)) for folder, cfg in planned)
    return Plan(name, declared, runs, derive(planned[0][1]).train_tokens)


def run_digest(cfg: Config) -> str:
    """Digest of a run's science as far as the configuration decides it, its data by their settings."""
    identity = identify(cfg, UNRESOLVED, {})
    training = {**identity.training, "data": plain(cfg.data)}
    return digest({"training": training, "measurement": identity.measurement, "hardware": plain(cfg.hardware)})


def design_problems(name: str, declared: PlanConfig, configs: Sequence[Config]) -> list[str]:
    """Every seed has every arm, once; nothing else is there."""
    if any(cfg.plan != declared for cfg in configs):
        return [f"protocol={name}: plan.* differs between runs: a protocol has one plan"]
    source = declared.model_source
    other = [cfg.model.source.name for cfg in configs if source is not None and cfg.model.source is not source]
    if source is not None and other:
        return [f"protocol={name}: model.source={other[0]}: the plan demands {source.name} (plan.model_source)"]
    problems = [*_membership(name, "seeds", "seed", declared.seeds, [cfg.seed for cfg in configs])]
    problems += _membership(name, "arms", "arm", declared.arms, [cfg.arm for cfg in configs])
    if problems or declared.design is Design.sweep:
        return problems
    found = [(cfg.seed, cfg.arm) for cfg in configs]
    expected = [(seed, arm) for seed in declared.seeds for arm in declared.arms]
    missing = [pair for pair in expected if pair not in found]
    problems += [f"protocol={name}: seed={seed} lacks arm {arm}: every seed needs every arm" for seed, arm in missing]
    if len(found) != len(expected) and not missing:
        problems.append(f"protocol={name}: {len(found)} runs, the plan declares {len(expected)} (seeds x arms)")
    return problems


def _membership(name: str, key: str, what: str, declared: Sequence[Any], found: Iterable[Any]) -> list[str]:
    found = list(dict.fromkeys(found))
    if sorted(found) == sorted(declared):
        return []
    shown = ",".join(map(str, found))
    listed = ",".join(map(str, declared))
    return [
        f"protocol={name}: {what} {shown}, but plan.{key}=[{listed}]; to change what is compared, change both: "
        f"'plan.{key}=[{shown}]'"
    ]


def difference_problems(planned: Sequence[tuple[str, Config]]) -> list[str]:
    """Keys in which a run differs from the first beyond seed and optimizer: such arms compare more than that."""
    first, *others = ((folder, _shared(cfg)) for folder, cfg in planned)
    found: dict[str, str] = {}
    for folder, shared in others:
        for key, a, b in differing(first[1], shared):
            found.setdefault(key, f"{key}: {a} in {first[0]}, {b} in {folder}: arms may differ in the optimizer only")
    return list(found.values())


def _shared(cfg: Config) -> dict[str, Any]:
    return without(plain(cfg), *PER_RUN)


def publish(plan: Plan, folder: Path) -> None:
    """Write `protocol.json`, unless it is there already.

    Raises:
        ConfigError: the directory holds another plan.
    """
    stored = read_plan(folder)
    if stored is None:
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write_json(folder / FILE, plan.record)
        return
    if stored["fingerprint"] != plan.fingerprint:
        changes = [key for key, _, _ in differing(_keyed(stored), _keyed(plan.record))]
        shown = ", ".join(changes[:4]) + (", ..." if len(changes) > 4 else "")
        raise ConfigError(
            f"{folder}: holds the runs of another plan (differs in {shown}); give this one a directory of its own, "
            "hydra.sweep.dir=..."
        )


def refuse_if_started(plan: Plan, folder: Path) -> None:
    """Going on with a protocol must be asked for: nothing is retried by accident.

    Raises:
        RefusedError: a run of it exists.
    """
    statuses = [read_record(folder / run.folder)["status"] for run in plan.runs if is_run(folder / run.folder)]
    if statuses:
        done = statuses.count(Status.complete.name)
        raise RefusedError(
            f"{folder}: {done} of {len(plan.runs)} runs of this plan are complete, {len(statuses) - done} were begun; "
            "resume.enabled=true goes on with it, hydra.sweep.dir=... starts another"
        )


def _keyed(record: Mapping[str, Any]) -> dict[str, Any]:
    runs = {run["folder"]: without(run, "folder") for run in record["runs"]}
    return {**without(record, "fingerprint", "format"), "runs": runs}


def read_plan(folder: Path) -> dict[str, Any] | None:
    """The stored plan of a protocol's directory, or None.

    Raises:
        StorageError: damaged, or changed after it was written.
    """
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        record = dict(atomic.read_json(file))
        content = without(record, "format", "fingerprint")
        stored = record["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{file}: damaged: {error}") from None
    if digest(content) != stored:
        raise StorageError(f"{file}: its content is not what its fingerprint says; it was edited after planning")
    return record
