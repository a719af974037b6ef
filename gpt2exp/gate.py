"""The one Hydra callback: refuses a run or a whole multirun before any directory exists.

Hydra turns a callback's exceptions into warnings and goes on; only SystemExit stops it.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gpt2exp.errors import ConfigError, Gpt2ExpError

if TYPE_CHECKING:
    from gpt2exp.config import Config
    from gpt2exp.protocol.plan import Plan


@dataclass(frozen=True)
class ComposedRun:
    """One run of a multirun: what is swept, its folder, and its configuration or what is wrong with it.

    The folder is "" where it depends on what only Hydra knows at launch.
    """

    name: str
    folder: str = ""
    config: Config | None = None
    problems: tuple[str, ...] = ()


class Gate(Callback):
    """Validates what Hydra composed; every refusal is one line a problem and our exit status."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a single run."""
        _refusing(lambda: check_run(config))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a multirun: every run of it is composed and validated first."""
        _refusing(lambda: check_multirun(config))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """After the last run of a protocol: its report, which judges for itself what is complete."""
        _refusing(lambda: conclude(config))


def conclude(config: DictConfig) -> None:
    """Write the report of a protocol, and say where it is."""
    from gpt2exp.protocol.plan import read_plan

    folder = Path(config.hydra.sweep.dir)
    if read_plan(folder) is not None:
        from gpt2exp.report.publish import publish_report

        publish_report([folder], folder, (), print)


def check_run(config: DictConfig) -> None:
    """Validate one composed run.

    Raises:
        ConfigError: with every problem.
    """
    from gpt2exp.explain import without_hydra
    from gpt2exp.validate import typed

    problems = hydra_problems(config.hydra)
    protocol = config.hydra.runtime.choices.get("protocol")
    if protocol:
        raise ConfigError([*problems, f"protocol={protocol} is a multirun: add -m (gpt2exp -m protocol={protocol})"])
    typed(without_hydra(config), problems)


def check_multirun(config: DictConfig) -> None:
    """Compose and validate every run of a multirun before the first starts, and keep a protocol's plan.

    Raises:
        ConfigError: with every problem; one that not all runs share names its run. Two runs in one directory, runs
            that are not what the protocol declares, and a directory that holds another plan are such.
    """
    from gpt2exp.protocol.plan import publish, refuse_if_started

    runs = composed_runs(config)
    problems = [*hydra_problems(config.hydra), *run_problems(runs), *_shared_folders(runs)]
    if problems:
        raise ConfigError(problems)
    plan = plan_of(config.hydra, runs)
    if plan is not None:
        folder = Path(config.hydra.sweep.dir)
        publish(plan, folder)
        if not all(run.config is not None and run.config.resume.enabled for run in runs):
            refuse_if_started(plan, folder)


def composed_runs(config: DictConfig) -> list[ComposedRun]:
    """Every run of a multirun, composed and validated."""
    return [_composed(config, name, overrides) for name, overrides in planned_runs(config.hydra)]


def run_problems(runs: Sequence[ComposedRun]) -> list[str]:
    """What is wrong with single runs; what is wrong with all of them is said once."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for problem in run.problems:
            found.setdefault(problem, []).append(run.name)
    return [p if len(names) == len(runs) else f"{p} (run {names[0]})" for p, names in found.items()]


def plan_of(hydra: DictConfig, runs: Sequence[ComposedRun]) -> Plan | None:
    """The plan of a protocol that declares one; None for other multiruns.

    Raises:
        ConfigError: the runs are not what it declares.
    """
    from gpt2exp.protocol.plan import make_plan

    protocol = hydra.runtime.choices.get("protocol")
    planned = [(run.folder, run.config) for run in runs if run.config is not None]
    if not protocol or not planned or not planned[0][1].plan.seeds:
        return None
    return make_plan(str(protocol), planned)


def hydra_problems(hydra: DictConfig) -> list[str]:
    """Uses of Hydra that would spoil a run's record."""
    from gpt2exp.explain import duplicates

    given = as_given(hydra)
    problems = duplicates([*given["task"], *given["hydra"]])
    if hydra.output_subdir is not None:
        problems.append(
            f"hydra.output_subdir={hydra.output_subdir}: a run keeps its own config.yaml and needs an empty "
            "directory; leave it null"
        )
    if hydra.job.chdir:
        problems.append("hydra.job.chdir=true: paths are read from where gpt2exp was started; leave it false")
    return problems


def as_given(hydra: DictConfig) -> dict[str, list[str]]:
    """The command line's `task` and `hydra` overrides; reading the nodes would resolve interpolations."""
    given = OmegaConf.to_container(hydra.overrides, resolve=False)
    assert isinstance(given, dict)
    return {str(key): [str(text) for text in texts] for key, texts in given.items()}


def planned_runs(hydra: DictConfig) -> list[tuple[str, list[str]]]:
    """Every run's name (what is swept) and overrides: last axis fastest, as Hydra's sweeper does.

    Raises:
        ConfigError: a sweep without a list of values.
    """
    from gpt2exp.explain import parse, sweep_values

    params = hydra.sweeper.get("params") or {}
    axes: dict[str, list[str]] = {}
    for text in [*(f"{key}={value}" for key, value in params.items()), *as_given(hydra)["task"]]:
        override = parse(text)
        key = override.get_key_element()
        swept = override.is_sweep_override()
        axes[key] = [f"{key}={value}" for value in sweep_values(override)] if swept else [text]
    varying = [len(values) > 1 for values in axes.values()]
    return [
        (" ".join(itertools.compress(run, varying)) or "without a sweep", list(run))
        for run in itertools.product(*axes.values())
    ]


def _shared_folders(runs: Sequence[ComposedRun]) -> list[str]:
    folders: dict[str, list[str]] = {}
    for run in runs:
        folders.setdefault(run.folder, []).append(run.name)
    shared = {folder: names for folder, names in folders.items() if len(names) > 1 and folder}
    return [
        f"hydra.sweep.subdir={folder}: the same directory for {len(names)} runs ({', '.join(names)}); give "
        "them different arms (arm=...) or put what is swept into hydra.sweep.subdir"
        for folder, names in list(shared.items())[:1]
    ]


def _composed(config: DictConfig, name: str, overrides: Sequence[str]) -> ComposedRun:
    from hydra import compose

    from gpt2exp.explain import Explainer, without_hydra
    from gpt2exp.validate import omegaconf_line, typed

    primary, everything = config.hydra.job.config_name, [*as_given(config.hydra)["hydra"], *overrides]
    try:
        composed = compose(primary, overrides=everything, return_hydra_config=True)
    except Exception as error:
        return ComposedRun(name, problems=tuple(Explainer(primary).explain(everything, error)))
    try:
        return ComposedRun(name, _subdir(composed), typed(without_hydra(composed)))
    except ConfigError as error:
        return ComposedRun(name, problems=tuple(error.problems))
    except OmegaConfBaseException as error:
        return ComposedRun(name, problems=(omegaconf_line(error),))


def _subdir(composed: DictConfig) -> str:
    """The run's folder, or "" where it depends on what only Hydra knows at launch (job numbers)."""
    raw = OmegaConf.to_container(composed.hydra.sweep, resolve=False)
    assert isinstance(raw, dict)
    return "" if "${hydra" in str(raw["subdir"]) else str(composed.hydra.sweep.subdir)


def _refusing(check: Callable[[], None]) -> None:
    from gpt2exp.main import report

    try:
        check()
    except Gpt2ExpError as error:
        raise SystemExit(report(error)) from None
    except Exception as error:
        traceback.print_exc()
        raise SystemExit(1) from error
