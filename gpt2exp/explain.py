"""Say everything that is wrong with a command line's overrides, in the user's terms.

Hydra stops at the first mistake and then advises `+key`, which is wrong for a typo. After a composition
failed, each override is tried alone and what it did wrong is put into one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra import compose as hydra_compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, EnumNode, FloatNode, IntegerNode, OmegaConf
from omegaconf.nodes import BooleanNode

from gpt2exp.errors import ConfigError
from gpt2exp.suggest import did_you_mean
from gpt2exp.validate import leaves, typed

CONFIG_NAME = "config"


@dataclass(frozen=True)
class Assignment:
    """One override with one value: `key=value` of a sweep's `key=value,other`."""

    key: str
    value: str
    text: str
    group: bool


def explain(overrides: Sequence[str], error: Exception) -> list[str]:
    """Every problem of `overrides`, one line each; Hydra must be initialised.

    Args:
        overrides: as on the command line, sweeps included.
        error: what Hydra raised; its first line is the answer when nothing else is found.
    """
    problems: list[str] = []
    good: list[Assignment] = []
    assignments = _assignments(overrides, problems)
    for chosen in (a for a in assignments if a.group):
        problem = _group_problem(chosen)
        problems.extend([problem] if problem else [])
        good.extend([] if problem else [chosen])
    base = _composed([a.text for a in good], problems)
    if base is None:
        return problems or [_first_line(error)]
    for assignment in (a for a in assignments if not a.group):
        problem = _value_problem(assignment, base, [a.text for a in good if a.group])
        problems.extend([problem] if problem else [])
        good.extend([] if problem else [assignment])
    problems += _remaining_problems(good)
    return problems or [_first_line(error)]


def parse(text: str) -> Override:
    """One override.

    Raises:
        ConfigError: not Hydra's grammar.
    """
    try:
        return OverridesParser.create().parse_override(text)
    except Exception as error:
        raise ConfigError(f"cannot read '{text}': {_first_line(error)}; write key=value") from None


def group_names() -> list[str]:
    """The configuration groups."""
    return [name for name in GlobalHydra.instance().config_loader().list_groups("") if name not in HIDDEN]


HIDDEN = ("schema", "hydra")


def group_options(group: str) -> list[str]:
    """The choices of a group."""
    return GlobalHydra.instance().config_loader().get_group_options(group, config_name=CONFIG_NAME)


def _assignments(overrides: Sequence[str], problems: list[str]) -> list[Assignment]:
    groups = group_names()
    found = []
    for text in overrides:
        try:
            override = parse(text)
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        key = override.get_key_element()
        is_group = override.key_or_group in groups or override.key_or_group.startswith("hydra/")
        if override.is_sweep_override():
            values = list(override.sweep_string_iterator())
        else:
            values = [text.partition("=")[2]]
        prefix = "" if override.is_delete() else "="
        found += [
            Assignment(override.key_or_group, v, f"{key}{prefix}{v}" if prefix else key, is_group) for v in values
        ]
    return found


def _group_problem(chosen: Assignment) -> str | None:
    if chosen.key.startswith("hydra/") or chosen.text.startswith("~"):
        return None
    options = group_options(chosen.key)
    if chosen.value in options or chosen.value == "null":
        return None
    hint = did_you_mean(chosen.value, options, prefix=f"{chosen.key}=")
    return f"{chosen.key}={chosen.value}: no such option (has: {', '.join(options)}){hint}"


def _composed(texts: list[str], problems: list[str]) -> DictConfig | None:
    try:
        return hydra_compose(CONFIG_NAME, overrides=texts)
    except Exception as error:
        problems.append(_first_line(error))
        return None


def _value_problem(assignment: Assignment, base: DictConfig, groups: list[str]) -> str | None:
    try:
        hydra_compose(CONFIG_NAME, overrides=[*groups, assignment.text])
        return None
    except Exception as error:
        cause = error
    key = assignment.key
    if key.startswith("hydra."):
        return f"{assignment.text}: {_first_line(cause)}"
    known = dict(leaves(base))
    if assignment.text.startswith("+") and key in known:
        return f"{key} exists already: drop the '+' of {assignment.text}"
    node = _node(base, key)
    if node is None:
        return f"unknown key {key}{did_you_mean(key, [*known, *group_names()])}"
    return f"{key}={assignment.value}: expected {expected(node)}"


def _node(cfg: DictConfig, key: str) -> Any:
    *parents, leaf = key.split(".")
    for part in parents:
        child = cfg._get_node(part) if isinstance(cfg, DictConfig) and part in cfg else None
        if not isinstance(child, DictConfig):
            return None
        cfg = child
    return cfg._get_node(leaf) if leaf in cfg or leaf in cfg._content else None


def expected(node: Any) -> str:
    """What a node takes, in words."""
    if isinstance(node, EnumNode):
        words = "one of " + ", ".join(member.name for member in node.enum_type)
    elif isinstance(node, BooleanNode):
        words = "true or false"
    elif isinstance(node, IntegerNode):
        words = "an integer"
    elif isinstance(node, FloatNode):
        words = "a number"
    elif OmegaConf.is_list(node):
        words = "a list, [a,b]"
    elif OmegaConf.is_dict(node):
        words = "its keys one by one (this is a group of keys, not a value)"
    else:
        words = "text"
    return words + (" or null" if node._is_optional() else "")


def _remaining_problems(good: list[Assignment]) -> list[str]:
    try:
        typed(hydra_compose(CONFIG_NAME, overrides=[a.text for a in good]))
    except ConfigError as error:
        return error.problems
    except Exception as error:
        return [_first_line(error)]
    return []


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def composition_failed(error: BaseException) -> bool:
    """Whether `error` comes from Hydra or YAML rather than from a run."""
    import yaml
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    return isinstance(error, HydraException | OmegaConfBaseException | yaml.YAMLError)
