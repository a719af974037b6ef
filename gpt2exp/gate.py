"""The one Hydra callback: refuses a run or a whole multirun before any directory exists.

Hydra turns a callback's exceptions into warnings and goes on; only SystemExit stops it.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from gpt2exp.errors import ConfigError, Gpt2ExpError


class Gate(Callback):
    """Validates what Hydra composed; every refusal is one line a problem and our exit status."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a single run."""
        _refusing(lambda: check_run(config))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a multirun: every run of it is composed and validated first."""
        _refusing(lambda: check_multirun(config))


def check_run(config: DictConfig) -> None:
    """Validate one composed run.

    Raises:
        ConfigError: with every problem.
    """
    from gpt2exp.validate import typed

    problems = duplicate_groups(config.hydra.overrides.task)
    protocol = config.hydra.runtime.choices.get("protocol")
    if protocol:
        problems.append(f"protocol={protocol} is a multirun: add -m (gpt2exp -m protocol={protocol})")
    problems += _problems(lambda: typed(_task_config(config)))
    if problems:
        raise ConfigError(problems)


def check_multirun(config: DictConfig) -> None:
    """Compose and validate every run of a multirun, and see that each gets a directory of its own.

    Raises:
        ConfigError: with every problem, each named with its run's overrides.
    """
    problems = duplicate_groups(config.hydra.overrides.task)
    folders: dict[str, list[str]] = {}
    for overrides in planned_runs(config):
        name = " ".join(overrides) or "(no overrides)"
        folder, found = _check_planned(overrides)
        problems += [f"run [{name}]: {problem}" for problem in found]
        folders.setdefault(folder, []).append(name)
    problems += [
        f"runs [{'] and ['.join(names)}] would share the directory {folder}; make hydra.sweep.subdir or arm differ"
        for folder, names in folders.items()
        if len(names) > 1 and folder
    ]
    if problems:
        raise ConfigError(problems)


def planned_runs(config: DictConfig) -> list[list[str]]:
    """Overrides of every run: the product of the sweep's axes, last one fastest, as Hydra's sweeper does."""
    from gpt2exp.explain import parse

    params = config.hydra.sweeper.get("params") or {}
    axes: dict[str, list[str]] = {}
    for text in [*(f"{key}={value}" for key, value in params.items()), *config.hydra.overrides.task]:
        override = parse(text)
        if override.is_sweep_override():
            values = list(override.sweep_string_iterator())
            axes[override.get_key_element()] = [f"{override.get_key_element()}={value}" for value in values]
        else:
            axes[override.get_key_element()] = [text]
    return [list(run) for run in itertools.product(*axes.values())]


def duplicate_groups(overrides: Sequence[str]) -> list[str]:
    """The same key given twice: Hydra silently takes the last."""
    keys = Counter(text.partition("=")[0].lstrip("+~") for text in overrides)
    return [f"{key} is given {count} times: give it once" for key, count in keys.items() if count > 1]


def _check_planned(overrides: list[str]) -> tuple[str, list[str]]:
    from hydra import compose

    from gpt2exp.compose import CONFIG_NAME
    from gpt2exp.explain import explain
    from gpt2exp.validate import typed

    try:
        composed = compose(CONFIG_NAME, overrides=overrides, return_hydra_config=True)
    except Exception as error:
        return "", explain(overrides, error)
    return _subdir(composed), _problems(lambda: typed(_task_config(composed)))


def _subdir(composed: DictConfig) -> str:
    """The run's folder, or "" where it depends on what only Hydra knows at launch (job numbers)."""
    raw = OmegaConf.to_container(composed.hydra.sweep, resolve=False)
    assert isinstance(raw, dict)
    return "" if "${hydra" in str(raw["subdir"]) else str(composed.hydra.sweep.subdir)


def _task_config(config: DictConfig) -> DictConfig:
    task = config.copy()
    OmegaConf.set_readonly(task, False)
    OmegaConf.set_struct(task, False)
    del task["hydra"]
    return task


def _problems(check: Callable[[], object]) -> list[str]:
    try:
        check()
    except ConfigError as error:
        return error.problems
    return []


def _refusing(check: Callable[[], None]) -> None:
    from gpt2exp.main import report

    try:
        check()
    except Gpt2ExpError as error:
        raise SystemExit(report(error)) from None
    except Exception as error:
        print(f"gpt2exp: the gate failed: {type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(1) from error
