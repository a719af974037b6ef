"""Turn a composed configuration into typed dataclasses, or report every problem at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gpt2exp.config import Config
from gpt2exp.errors import ConfigError
from gpt2exp.rules import cross_field_problems
from gpt2exp.suggest import did_you_mean

T = TypeVar("T")

CHOICES_WITHOUT_NODE = ("preset", "protocol")
"""Groups that set keys elsewhere."""


def typed(cfg: DictConfig, problems: Sequence[str] = ()) -> Config:
    """The frozen configuration.

    Args:
        cfg: composed, without Hydra's own node.
        problems: found before, to be reported together with what is found here.

    Raises:
        ConfigError: unknown, removed and missing keys, non-finite numbers, and every broken rule of `rules`.
            Rules are judged once nothing is missing.
    """
    if OmegaConf.get_type(cfg) is not Config:
        raise ConfigError("not built on gpt2exp's configuration: start the defaults list with '- config'")
    unknown, missing = unknown_keys(cfg), missing_keys(cfg)
    infinite = {key: value for key, value in leaves(cfg) if non_finite(value)}
    found = [*problems, *(unknown_key_line(key, cfg) for key in unknown)]
    found += [f"{key} is not set: give {key}=<value>" for key in missing]
    found += [f"{key}={value}: must be finite" for key, value in infinite.items()]
    found += [f"{key}={value}: '${{' cannot be recorded" for key, value in leaves(cfg) if interpolates(value)]
    broken = [] if missing else list(unresolved(cfg))
    if missing or broken:
        raise ConfigError([*found, *broken])
    config = to_config(cfg, without=unknown)
    lengths = dict(tuple_problems(config))
    found += [*lengths.values(), *cross_field_problems(config, unsound=[*infinite, *lengths])]
    if found:
        raise ConfigError(found)
    return config


@dataclass(frozen=True)
class Entry:
    """A key somewhere in a configuration: its dotted name and where it hangs; `node` None where removed."""

    name: str
    parent: DictConfig
    key: Any
    node: Node | None

    @property
    def declared(self) -> bool:
        """Whether the parent's schema, if it has one, knows the key."""
        names = declared_names(self.parent)
        return not names or self.key in names

    @property
    def missing(self) -> bool:
        """`???`, or removed with `~key`."""
        return self.node is None or self.node._is_missing()

    def value(self) -> Any:
        """The resolved value.

        Raises:
            OmegaConfBaseException: it points nowhere or to a wrong type.
        """
        return self.parent[self.key]


def entries(node: DictConfig, prefix: str = "") -> Iterator[Entry]:
    """Every key below `node`, sections before what they hold, removed ones included."""
    for key in dict.fromkeys([*node, *declared_names(node)]):
        child: Any = node._get_node(key, validate_access=False)
        name = f"{prefix}{key!s}"
        yield Entry(name, node, key, child)
        if is_section(child):
            yield from entries(child, f"{name}.")


def declared_names(node: DictConfig) -> list[str]:
    """Fields of the node's schema; empty without one."""
    schema = OmegaConf.get_type(node)
    return [f.name for f in fields(schema)] if is_dataclass(schema) else []


def is_section(node: Any) -> bool:
    """Whether a node holds keys."""
    return isinstance(node, DictConfig) and not (node._is_none() or node._is_missing() or node._is_interpolation())


def unknown_keys(cfg: DictConfig) -> list[str]:
    """Keys beyond the schema: OmegaConf lets `+key=value` add them."""
    return [entry.name for entry in entries(cfg) if not entry.declared]


def missing_keys(cfg: DictConfig) -> list[str]:
    """Keys without a value."""
    return [entry.name for entry in entries(cfg) if entry.missing]


def unknown_key_line(key: str, cfg: DictConfig) -> str:
    """`unknown key x.y`, with the nearest real key."""
    declared = [entry.name for entry in entries(cfg) if entry.declared]
    known = [name for name in declared if not f"{name}.".startswith(f"{key}.")]
    return f"unknown key {key}{did_you_mean(key, [*known, *CHOICES_WITHOUT_NODE])}"


def leaves(cfg: DictConfig) -> Iterator[tuple[str, Any]]:
    """Dotted keys and resolved values; "???" for what is missing or cannot be resolved."""
    for entry in entries(cfg):
        if not is_section(entry.node) and entry.node is not None:
            try:
                yield entry.name, "???" if entry.missing else entry.value()
            except OmegaConfBaseException:
                yield entry.name, "???"


def unresolved(cfg: DictConfig) -> Iterator[str]:
    """One line for each interpolation that leads nowhere, to a wrong type, or to what only Hydra knows."""
    for entry in entries(cfg):
        if entry.node is None or not entry.node._is_interpolation():
            continue
        text: Any = entry.node._value()
        if "${hydra:" in text:
            yield f"{entry.name}={text}: only hydra.* keys may use ${{hydra:...}}"
            continue
        try:
            entry.value()
        except OmegaConfBaseException as error:
            yield f"{entry.name}={text}: {str(error).splitlines()[0]}"


def omegaconf_line(error: OmegaConfBaseException) -> str:
    """OmegaConf's message on one line, with the key it is about."""
    first = str(error).splitlines()[0]
    return f"{error.full_key}: {first}" if error.full_key else first


def non_finite(value: Any) -> bool:
    """True for NaN and infinities, in sequences too: YAML and Hydra accept them as floats."""
    if isinstance(value, float):
        return not math.isfinite(value)
    return _is_sequence(value) and any(map(non_finite, value))


def interpolates(value: Any) -> bool:
    """True for text that a recorded configuration would read back as an interpolation."""
    if isinstance(value, str):
        return "${" in value
    return _is_sequence(value) and any(map(interpolates, value))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def to_config(cfg: DictConfig, without: Sequence[str] = ()) -> Config:
    """The dataclasses, leaving out some keys."""
    clean = cfg.copy()
    for entry in list(entries(clean)):
        if entry.name in without:
            OmegaConf.set_struct(entry.parent, False)
            content: Any = entry.parent._content
            content.pop(entry.key)
    config = OmegaConf.to_object(clean)
    assert isinstance(config, Config)
    return restore_tuples(config)


def restore_tuples(record: T) -> T:
    """OmegaConf hands tuples back as lists: make them what the schema says, all the way down."""
    changes: dict[str, Any] = {}
    for name, value, hint in _typed_fields(record):
        if is_dataclass(value):
            changes[name] = restore_tuples(value)
        elif isinstance(value, list) and get_origin(hint) is tuple:
            changes[name] = tuple(value)
    return replace(record, **changes)  # type: ignore[type-var]


def tuple_problems(record: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Tuples whose length is not the schema's, by key: OmegaConf does not count."""
    for name, value, hint in _typed_fields(record):
        key, members = f"{prefix}{name}", get_args(hint)
        if is_dataclass(value):
            yield from tuple_problems(value, f"{key}.")
        elif isinstance(value, tuple) and ... not in members and len(value) != len(members):
            yield key, f"{key}={list(value)}: expected {len(members)} values, found {len(value)}"


def _typed_fields(record: Any) -> list[tuple[str, Any, Any]]:
    hints = get_type_hints(type(record))
    return [(f.name, getattr(record, f.name), hints[f.name]) for f in fields(record)]
