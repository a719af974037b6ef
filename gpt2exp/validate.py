"""Turn a composed configuration into typed dataclasses, or report every problem at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gpt2exp.config import Config
from gpt2exp.errors import ConfigError
from gpt2exp.rules import cross_field_problems
from gpt2exp.suggest import did_you_mean


T = TypeVar("T")


def typed(cfg: DictConfig) -> Config:
    """The frozen configuration.

    Raises:
        ConfigError: unknown keys, missing values, non-finite numbers and every broken cross-field rule.
    """
    unknown = list(unknown_keys(cfg))
    problems = [unknown_key_line(key, cfg) for key in unknown]
    problems += [f"{key} is not set: give {key}=<value>" for key in sorted(OmegaConf.missing_keys(cfg))]
    problems += [f"{key}={value}: must be finite" for key, value in leaves(cfg) if non_finite(value)]
    if OmegaConf.missing_keys(cfg):
        raise ConfigError(problems)
    config = _to_object(_without(cfg, unknown))
    reported = {problem.partition("=")[0] for problem in problems}
    problems += [line for line in cross_field_problems(config) if line.partition("=")[0] not in reported]
    if problems:
        raise ConfigError(problems)
    return config


def unknown_keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Keys beyond the schema: OmegaConf lets `+key=value` add them."""
    schema = OmegaConf.get_type(node)
    declared = {f.name for f in fields(schema)} if is_dataclass(schema) else None
    for key in node:
        child = node._get_node(key)
        if declared is not None and key not in declared:
            yield f"{prefix}{key}"
        elif isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
            yield from unknown_keys(child, f"{prefix}{key}.")


def unknown_key_line(key: str, cfg: DictConfig) -> str:
    """`unknown key x.y`, with the nearest real key."""
    return f"unknown key {key}{did_you_mean(key, [name for name, _ in leaves(cfg) if name != key])}"


def leaves(node: DictConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and resolved values; missing values come as "???"."""
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
            yield from leaves(child, f"{prefix}{key}.")
        elif OmegaConf.is_missing(node, key):
            yield f"{prefix}{key}", "???"
        else:
            yield f"{prefix}{key}", _value(node, key)


def _value(node: DictConfig, key: Any) -> Any:
    try:
        return node[key]
    except OmegaConfBaseException:
        return "???"


def non_finite(value: Any) -> bool:
    """True for NaN and infinities, in sequences too: YAML and Hydra accept them as floats."""
    if isinstance(value, float):
        return not math.isfinite(value)
    return OmegaConf.is_list(value) and any(non_finite(item) for item in value)


def _without(cfg: DictConfig, keys: list[str]) -> DictConfig:
    clean = cfg.copy()
    OmegaConf.set_struct(clean, False)
    for key in keys:
        parent, _, leaf = key.rpartition(".")
        node = OmegaConf.select(clean, parent) if parent else clean
        OmegaConf.set_struct(node, False)
        dict.pop(node._content, leaf)
    return clean


def _to_object(cfg: DictConfig) -> Config:
    try:
        config = OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from None
    assert isinstance(config, Config)
    return restore_tuples(config)


def restore_tuples(record: T) -> T:
    """OmegaConf hands tuples back as lists: make them what the schema says, all the way down."""
    assert is_dataclass(record) and not isinstance(record, type)
    hints = get_type_hints(type(record))
    changes: dict[str, Any] = {}
    for f in fields(record):
        value = getattr(record, f.name)
        if is_dataclass(value):
            changes[f.name] = restore_tuples(value)
        elif isinstance(value, list) and getattr(hints[f.name], "__origin__", None) is tuple:
            changes[f.name] = tuple(value)
    return replace(record, **changes)
