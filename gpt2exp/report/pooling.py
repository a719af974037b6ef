"""Which runs may be pooled: those of one science, on one engine and device model, under one torch minor version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpt2exp.identity import flatten, without
from gpt2exp.report.findings import Difference
from gpt2exp.report.records import shown
from gpt2exp.report.runs import Run

POOLED_EXECUTION = ("engine", "device_model", "torch")
"""Execution that must be equal; of torch, major and minor version."""


def differences(runs: Sequence[Run], *, same_optimizer: bool = True) -> tuple[Difference, ...]:
    """What forbids pooling: keys of training (without seed and optimizer), measurement and execution that differ.

    Args:
        runs: any runs.
        same_optimizer: also name optimizer settings that differ between runs of one arm, which is then two arms;
            off for a sweep, where they are meant to.
    """
    names = names_of(runs)
    found = [
        *_differing("training", [without(run.record["training"], "seed", "optimizer") for run in runs], names),
        *_differing("measurement", [run.record["measurement"] for run in runs], names),
        *_differing("execution", [_pooled_execution(run) for run in runs], names),
    ]
    return (*found, *(_inside_arms(runs, names) if same_optimizer else ()))


def noted(runs: Sequence[Run]) -> tuple[Difference, ...]:
    """Execution that differs and is only printed: devices, ranks, threads, micro-batch, patch versions, ..."""
    names = names_of(runs)
    forbidden = {d.key for d in _differing("execution", [_pooled_execution(run) for run in runs], names)}
    every = _differing("execution", [run.record["execution"] for run in runs], names)
    return tuple(difference for difference in every if difference.key not in forbidden)


def names_of(runs: Sequence[Run]) -> list[str]:
    """A name for each run that no other one has: arm and seed, else the directory's name, else its path."""
    candidates = (
        [f"{run.arm} seed {run.seed}" for run in runs],
        [run.name for run in runs],
        [str(run.path) for run in runs],
    )
    return next((names for names in candidates if len(set(names)) == len(names)), candidates[-1])


def describe(difference: Difference) -> str:
    """`training.data.corpus (a1b2...: muonclip seed 42; c3d4...: adamw seed 42)`."""
    values = "; ".join(f"{value}: {', '.join(names)}" for value, names in difference.values.items())
    return f"{key_of(difference)} ({values})"


def key_of(difference: Difference) -> str:
    """The full key, as an override must name it."""
    return f"{difference.tier}.{difference.key}"


def _pooled_execution(run: Run) -> dict[str, Any]:
    execution = run.record["execution"]
    pooled = {key: execution.get(key, "-") for key in POOLED_EXECUTION}
    return {**pooled, "torch": ".".join(str(pooled["torch"]).partition("+")[0].split(".")[:2])}


def _inside_arms(runs: Sequence[Run], names: Sequence[str]) -> Iterator[Difference]:
    for arm in dict.fromkeys(run.arm for run in runs):
        members = [(run, name) for run, name in zip(runs, names, strict=True) if run.arm == arm]
        settings = [{"optimizer": run.record["training"]["optimizer"]} for run, _ in members]
        yield from _differing("training", settings, [name for _, name in members])


def _differing(tier: str, content: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Difference]:
    flat = [flatten(mapping) for mapping in content]
    found = []
    for key in sorted({key for mapping in flat for key in mapping}):
        values: dict[str, tuple[str, ...]] = {}
        for mapping, name in zip(flat, names, strict=True):
            text = shown(mapping.get(key, "-"))
            values[text] = (*values.get(text, ()), name)
        if len(values) > 1:
            found.append(Difference(tier, key, values))
    return found
