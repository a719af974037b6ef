"""The one way to a `Config`: compose overrides, or load what a run recorded."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from gpt2exp.config import (
    DATA_SCHEMAS,
    Config,
    EvaluationConfig,
    HardwareConfig,
    ModelConfig,
    ScheduleConfig,
    shipped,
)
from gpt2exp.errors import ConfigError
from gpt2exp.optim.registry import optimizers
from gpt2exp.suggest import did_you_mean
from gpt2exp.validate import leaves, typed

CONFIG_NAME = "config"


@cache
def register() -> None:
    """Tell Hydra's config store the schemas and the protocols. Idempotent."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store("config_schema", schema_node(Config))
    for group, schema in SCHEMAS.items():
        store.store(group, schema_node(schema), group="schema")
    for kind, optimizer in optimizers().items():
        store.store(kind, schema_node(optimizer.recipe), group="schema/optimizer")
    for kind, data in DATA_SCHEMAS.items():
        store.store(kind, schema_node(data), group="schema/data")
    for file in protocol_files():
        node = OmegaConf.create(file.read_text(encoding="utf-8"))
        store.store(file.stem, node, group="protocol", package="_global_", provider="multirun_protocols")
    OmegaConf.register_new_resolver("run_id", lambda: secrets.token_hex(4), replace=True)


SCHEMAS = {
    "model": ModelConfig,
    "schedule": ScheduleConfig,
    "hardware": HardwareConfig,
    "evaluation": EvaluationConfig,
}


def protocol_files() -> list[Path]:
    """The shipped protocols, one YAML file each."""
    return sorted(shipped("multirun_protocols").glob("*.yaml"))


def schema_node(schema: type) -> DictConfig:
    """A structured node of a frozen dataclass that Hydra may still write to while it composes."""
    node = OmegaConf.structured(schema)
    assert isinstance(node, DictConfig)
    _unlock(node)
    return node


def _unlock(node: DictConfig) -> None:
    OmegaConf.set_readonly(node, None)
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig):
            _unlock(child)


@contextmanager
def hydra_ready() -> Iterator[None]:
    """Hydra initialised on our configuration folder, whatever state an earlier use left it in."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(shipped("conf")), version_base="1.3"):
        yield


def compose(overrides: Sequence[str]) -> Config:
    """The typed configuration that `overrides` select.

    Raises:
        ConfigError: with every problem found.
    """
    from gpt2exp.explain import explain

    with hydra_ready():
        from hydra import compose as hydra_compose

        try:
            composed = hydra_compose(CONFIG_NAME, overrides=list(overrides))
        except Exception as error:
            raise ConfigError(explain(list(overrides), error)) from None
        return typed(composed)


def load_config(run: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration recorded in a run directory or in a `config.yaml` itself, `key=value`s on top.

    Raises:
        ConfigError: no such file, one that this version cannot read, or an override that does not fit.
    """
    file = run / "config.yaml" if run.is_dir() else run
    if not file.is_file():
        raise ConfigError(f"{run}: no config.yaml there; expected a run directory or a configuration file")
    try:
        plain = OmegaConf.load(file)
        merged = OmegaConf.merge(structured(plain), plain)
    except (OmegaConfBaseException, YAMLError, KeyError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not a configuration of gpt2exp: {str(error).splitlines()[0]}") from None
    assert isinstance(merged, DictConfig)
    for override in overrides:
        merged = _overridden(merged, override)
    return typed(merged)


def _overridden(cfg: DictConfig, override: str) -> DictConfig:
    """One override on a recorded configuration, which takes single keys but no group choices."""
    key, equals, _ = override.partition("=")
    known = [name for name, _ in leaves(cfg)]
    if not equals or key not in known:
        raise ConfigError(f"unknown key {key}{did_you_mean(key, known)}; a recorded run takes key=value only")
    try:
        merged = OmegaConf.merge(cfg, OmegaConf.from_dotlist([override]))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{override}: {str(error).splitlines()[0]}") from None
    assert isinstance(merged, DictConfig)
    return merged


def structured(plain: Any) -> DictConfig:
    """The schemas that a recorded configuration fills, so that types and keys are checked again."""
    register()
    node = schema_node(Config)
    for group, schema in {**SCHEMAS, **_chosen_schemas(plain)}.items():
        node[group] = schema_node(schema)
    return node


def _chosen_schemas(plain: Any) -> dict[str, type]:
    return {
        "optimizer": optimizers()[plain.optimizer.kind].recipe,
        "data": DATA_SCHEMAS[plain.data.kind],
    }
