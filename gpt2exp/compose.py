"""The one way to a `Config`: compose overrides, or load what a run recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from gpt2exp.config import DATA_SCHEMAS, Config, shipped
from gpt2exp.errors import ConfigError
from gpt2exp.optim.registry import optimizers
from gpt2exp.schemas import CONFIG_NAME, SCHEMAS, register, schema_node, version_base
from gpt2exp.suggest import did_you_mean
from gpt2exp.validate import entries, is_section, typed


@contextmanager
def hydra_ready(config_dir: str | None = None) -> Iterator[None]:
    """Hydra initialised on our configuration folder, whatever state an earlier use left it in.

    Args:
        config_dir: a folder of the user's that is searched too (`-cd`).
    """
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(shipped("conf")), job_name="gpt2exp", **version_base()):
        if config_dir is not None:
            _search_also(Path(config_dir).resolve())
        yield


def _search_also(folder: Path) -> None:
    """Put `folder` where Hydra's own command line puts `--config-dir`."""
    from hydra._internal.hydra import Hydra
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra

    search_path = GlobalHydra.instance().config_loader().get_search_path()
    search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    GlobalHydra.instance().clear()
    Hydra.create_main_hydra2(task_name="gpt2exp", config_search_path=search_path)


def compose(overrides: Sequence[str]) -> Config:
    """The typed configuration that `overrides` select; of a key's values the last one counts.

    Raises:
        ConfigError: with every problem found, a group given twice too.
    """
    from hydra import compose as hydra_compose

    from gpt2exp.explain import Explainer, duplicates, group_names

    with hydra_ready():
        try:
            composed = hydra_compose(CONFIG_NAME, overrides=list(overrides))
        except Exception as error:
            raise ConfigError(Explainer(CONFIG_NAME).explain(overrides, error)) from None
        return typed(composed, duplicates(overrides, among=group_names()))


def load_config(run: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration recorded in a run directory or in a `config.yaml` itself, `key=value`s on top.

    Raises:
        ConfigError: no such file, one that this version cannot read, or overrides that do not fit.
    """
    file = run / "config.yaml" if run.is_dir() else run
    if not file.is_file():
        raise ConfigError(f"{run}: no config.yaml there; expected a run directory or a configuration file")
    cfg = _recorded(file)
    problems = [problem for override in overrides for problem in _override(cfg, override)]
    if problems:
        raise ConfigError(problems)
    try:
        return typed(cfg)
    except ConfigError as error:
        raise ConfigError([f"{file}: {problem}" for problem in error.problems]) from None


def _recorded(file: Path) -> DictConfig:
    """A configuration file on its schemas."""
    from gpt2exp.explain import describe

    try:
        plain = OmegaConf.load(file)
        merged = OmegaConf.merge(structured(plain), plain)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    except (OmegaConfBaseException, YAMLError, OSError, ValueError) as error:
        raise ConfigError(f"{file}: not a configuration of gpt2exp: {describe(error)}") from None
    assert isinstance(merged, DictConfig)
    return merged


def _override(cfg: DictConfig, override: str) -> list[str]:
    """Set one key of a recorded configuration, which takes no group choices; what is wrong with that."""
    key, equals, _ = override.partition("=")
    nodes = {entry.name: entry.node for entry in entries(cfg)}
    if key not in nodes:
        return [f"unknown key {key}{did_you_mean(key, list(nodes))}; a recorded run takes key=value only"]
    if not equals:
        return [f"{key}: give it a value, {key}=<value>"]
    if is_section(nodes[key]):
        return [f"{override}: a recorded run keeps its choices; set single keys, {key}.<key>=<value>"]
    try:
        cfg.merge_with(OmegaConf.from_dotlist([override]))
    except (OmegaConfBaseException, YAMLError) as error:
        return [f"{override}: {str(error).splitlines()[0]}"]
    return []


def structured(plain: Any) -> DictConfig:
    """The schemas that a recorded configuration fills, so that types and keys are checked again.

    Raises:
        ConfigError: it names no optimizer or data set, or one that this version does not have.
    """
    register()
    recipes = {kind: optimizer.recipe for kind, optimizer in optimizers().items()}
    chosen = {"optimizer": _chosen(plain, "optimizer", recipes), "data": _chosen(plain, "data", DATA_SCHEMAS)}
    node = schema_node(Config)
    for group, schema in {**SCHEMAS, **chosen}.items():
        node[group] = schema_node(schema)
    return node


def _chosen(plain: Any, group: str, schemas: Mapping[str, type]) -> type:
    section = plain.get(group) if isinstance(plain, DictConfig) else None
    kind = str(section.get("kind")) if isinstance(section, DictConfig) else None
    if kind is None or kind not in schemas:
        raise ConfigError(f"{group}.kind={kind}: not a configuration of gpt2exp (known: {', '.join(schemas)})")
    return schemas[kind]
