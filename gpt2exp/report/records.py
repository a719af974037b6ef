"""Whether a run's record still says what the run wrote: digests recomputed, files against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpt2exp.errors import StorageError
from gpt2exp.identity import Identity, canonical, digest, flatten, without
from gpt2exp.report.runs import Run, read_run

INITIAL_WEIGHTS = "initial_weights_sha256"
NEEDED = {
    "": ("digests", "training", "measurement", "execution"),
    "training": ("model", "optimizer", "schedule", "data"),
    "measurement": ("evaluation",),
}
"""Sections of `run.json` without which nothing can be said about a run's identity."""


def read_identified(path: Path) -> Run:
    """Read a run directory whose record has every tier of an identity.

    Raises:
        StorageError: something is missing or damaged.
    """
    run = read_run(path)
    missing = [*_lacking(run.record), *([] if INITIAL_WEIGHTS in run.record else [INITIAL_WEIGHTS])]
    if isinstance(run.config, dict):
        missing += [f"{key} in config.yaml" for key in ("data", "hardware") if key not in run.config]
    else:
        missing.append("config.yaml")
    if missing:
        raise StorageError(f"{path}: has no {', '.join(missing)}: damaged, or of another version")
    return run


def _lacking(record: Mapping[str, Any]) -> list[str]:
    sections = [(f"{outer}.{key}" if outer else key, outer, key) for outer, keys in NEEDED.items() for key in keys]
    holders = {outer: record.get(outer) if outer else record for outer in NEEDED}
    return [
        name
        for name, outer, key in sections
        if isinstance(holders[outer], dict) and not isinstance((holders[outer] or {}).get(key), dict)
    ]


def record_problems(run: Run) -> tuple[str, ...]:
    """What shows that a run directory was edited or damaged after the run: each names its keys and both values."""
    return (*_digest_problems(run), *_row_problems(run))


def shown(value: Any) -> str:
    """A value in a message: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else canonical(value)


def planned_digest(run: Run) -> str:
    """The digest that a plan made before the run gave it: its data by their settings instead of their content.

    The counterpart of `gpt2exp.protocol.plan.run_digest`, from what the run recorded.
    """
    training, measurement = run.record["training"], dict(run.record["measurement"])
    if "tracking" in measurement:
        measurement["tracking"] = {**measurement["tracking"], "probe": None, "estimator": None}
    return digest(
        {
            "training": {**training, "model": {**training["model"], "sha256": None}, "data": run.config["data"]},
            "measurement": {**measurement, "split": ""},
            "hardware": run.config["hardware"],
        }
    )


def _digest_problems(run: Run) -> Iterator[str]:
    record = run.record
    try:
        computed = Identity(record["training"], record["measurement"], record["execution"]).digests
    except (ValueError, TypeError) as error:
        yield f"run.json holds what no run writes: {error}"
        return
    stored = record["digests"]
    broken = [name for name in computed if stored.get(name) != computed[name]]
    contradictions = list(_contradictions(run))
    yield from contradictions
    if broken:
        name = next((tier for tier in ("training", "measurement", "execution") if tier in broken), broken[0])
        where = "" if contradictions else "; which key was changed cannot be told from this run alone"
        yield (
            f"digests.{name} is {stored.get(name)}, but what run.json holds gives {computed[name]}: it was edited "
            f"after the run{where}"
        )


def _contradictions(run: Run) -> Iterator[str]:
    """Keys that are recorded twice, with different values."""
    training, measurement = run.record["training"], run.record["measurement"]
    corpus, split = training["data"].get("corpus"), measurement.get("split")
    if corpus != split:
        yield f"training.data.corpus is {corpus}, but measurement.split, the same hash, is {split}"
    recorded = flatten({"training": training, "measurement": measurement})
    configured = flatten(_configured(run.config))
    for key in sorted(recorded.keys() & configured.keys()):
        if recorded[key] != configured[key]:
            yield f"{key} is {shown(recorded[key])} in run.json, {shown(configured[key])} in config.yaml"
    if training.get("seed") != run.record["seed"]:
        yield f"training.seed is {training.get('seed')}, but seed is {run.record['seed']}"


def _configured(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of both science tiers that `config.yaml` decides, under the same names."""
    schedule, data = config.get("schedule", {}), config.get("data", {})
    unset = ("warmup_steps",) if schedule.get("warmup_steps") is None else ()
    tracking = config.get("tracking", {})
    return {
        "training": {
            "seed": config.get("seed"),
            "precision": config.get("precision"),
            "model": without(config.get("model", {}), "label", "path"),
            "optimizer": without(config.get("optimizer", {}), "label"),
            "schedule": without(schedule, "label", "warmup_fraction", *unset),
            "data": {key: data.get(key) for key in ("order", "window_tokens", "allow_repeat")},
        },
        "measurement": {
            "evaluation": config.get("evaluation", {}),
            "tracking": without(tracking, "probe_tokens", "keep_weights", "max_pending"),
        },
    }


def _row_problems(run: Run) -> Iterator[str]:
    steps = [row["step"] for row in run.metrics]
    if steps != list(range(1, len(steps) + 1)):
        yield f"metrics.jsonl does not hold every step to {run.step} once: rows were removed or repeated"
    if not run.complete:
        return
    if run.step != run.num_steps:
        yield f"status is complete, but metrics.jsonl ends at step {run.step} of {run.num_steps}"
    every = run.record["measurement"]["evaluation"]["every"]
    due = {*range(0, run.num_steps + 1, every), run.num_steps} if every else set()
    lacking = sorted(due - {row["step"] for row in run.evaluations})
    if lacking:
        yield f"status is complete, but evaluations.jsonl lacks step {', '.join(map(str, lacking))}"
