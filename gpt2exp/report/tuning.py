"""A sweep read: which setting of each arm came out best, and whether its grid was wide enough to say so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpt2exp.identity import canonical, flatten
from gpt2exp.report.measures import TITLES, value_of
from gpt2exp.report.paired import mean
from gpt2exp.report.records import shown
from gpt2exp.report.runs import Run
from gpt2exp.report.sentences import counted, number


@dataclass(frozen=True)
class Setting:
    """One point of an arm's grid: the swept keys' values and the endpoint by seed (None: not there).

    `mean` is over the seeds, and None where one of them has no finite value: a setting that diverged once is not
    one to choose.
    """

    values: Mapping[str, Any]
    by_seed: Mapping[int, float | None]
    mean: float | None


@dataclass(frozen=True)
class ArmTuning:
    """One arm of a sweep. `edges` are the keys at whose smallest or largest value the best setting lies."""

    arm: str
    endpoint: str
    keys: tuple[str, ...]
    settings: tuple[Setting, ...]
    best: Setting | None
    edges: tuple[str, ...]


def tune(runs: Sequence[Run], endpoint: str = "final_val_loss") -> tuple[ArmTuning, ...]:
    """Every arm's settings in order of their values; the best has the lowest mean of the endpoint.

    Only complete runs have a value.
    """
    arms = dict.fromkeys(run.arm for run in runs)
    return tuple(_tune_arm(arm, [run for run in runs if run.arm == arm], endpoint) for arm in arms)


def _tune_arm(arm: str, runs: Sequence[Run], endpoint: str) -> ArmTuning:
    optimizers = [flatten(run.record["training"]["optimizer"]) for run in runs]
    every = sorted({key for optimizer in optimizers for key in optimizer})
    keys = tuple(key for key in every if len({canonical(optimizer.get(key)) for optimizer in optimizers}) > 1)
    seeds = sorted({run.seed for run in runs})
    grid: dict[tuple[Any, ...], dict[int, float | None]] = {}
    for run, optimizer in zip(runs, optimizers, strict=True):
        values = grid.setdefault(tuple(optimizer.get(key) for key in keys), dict.fromkeys(seeds))
        values[run.seed] = value_of(run, endpoint) if run.complete else None
    settings = [Setting(dict(zip(keys, point, strict=True)), values, _mean(values)) for point, values in grid.items()]
    settings.sort(key=lambda setting: [_order(setting.values[key]) for key in keys])
    known = [setting for setting in settings if setting.mean is not None]
    best = min(known, key=lambda setting: setting.mean or 0.0, default=None)
    return ArmTuning(arm, endpoint, keys, tuple(settings), best, _edges(best, settings, keys))


def _mean(values: Mapping[int, float | None]) -> float | None:
    found = [value for value in values.values() if value is not None and math.isfinite(value)]
    return mean(found) if len(found) == len(values) else None


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers by size, then everything else by its text."""
    return (False, value) if isinstance(value, int | float) else (True, str(value))


def _edges(best: Setting | None, settings: Sequence[Setting], keys: Sequence[str]) -> tuple[str, ...]:
    if best is None:
        return ()
    grids = {key: [setting.values[key] for setting in settings] for key in keys}
    numeric = [key for key in keys if all(isinstance(v, int | float) and not isinstance(v, bool) for v in grids[key])]
    return tuple(key for key in numeric if best.values[key] in (min(grids[key]), max(grids[key])))


def explain_tuning(arms: Sequence[ArmTuning]) -> list[str]:
    """A sweep, sentence by sentence; unequal budgets first."""
    counts = {arm.arm: len(arm.settings) for arm in arms}
    lines = []
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{arm} {count}" for arm, count in counts.items())
        lines.append(
            f"Unequal tuning budgets: {listed} settings; an arm that was tried with more tends to look better."
        )
    return [*lines, *(line for arm in arms for line in _explain(arm))]


def _explain(arm: ArmTuning) -> Iterator[str]:
    tried, title = counted(len(arm.settings), "setting"), TITLES[arm.endpoint]
    failed = sum(setting.mean is None for setting in arm.settings)
    missing = f"; {counted(failed, 'setting')} without a finite value at every seed" if failed else ""
    if arm.best is None or arm.best.mean is None:
        yield f"{arm.arm}: none of {tried} has a {title} at every seed."
        return
    where = ", ".join(f"{key}={shown(value)}" for key, value in arm.best.values.items()) or "the only setting"
    seeds = counted(len(arm.best.by_seed), "seed")
    yield f"{arm.arm}: lowest {title} {number(arm.best.mean)} at {where} (of {tried}, {seeds}{missing})."
    for key in arm.edges:
        grid = sorted({setting.values[key] for setting in arm.settings})
        end = "low" if arm.best.values[key] == grid[0] else "high"
        yield (
            f"{arm.arm}: the best {key}={shown(arm.best.values[key])} lies at the {end} edge of its grid "
            f"({shown(grid[0])} to {shown(grid[-1])}), so a better one may lie beyond: widen the grid."
        )
