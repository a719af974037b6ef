"""Say everything that is wrong with a command line's overrides, in the user's terms.

Hydra stops at the first mistake and then advises `+key`, which is wrong for a typo. After a composition
failed, each override is tried alone and what it did wrong is put into one line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hydra import compose as hydra_compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from omegaconf import DictConfig, EnumNode, FloatNode, IntegerNode, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.nodes import BooleanNode

from gpt2exp.errors import ConfigError
from gpt2exp.suggest import did_you_mean
from gpt2exp.validate import entries, omegaconf_line, typed

HIDDEN = ("schema", "hydra")


@dataclass(frozen=True)
class Assignment:
    """One override with one value: `key=value` of a sweep's `key=value,other`."""

    key: str
    shown: str
    text: str
    value: Any
    group: bool

    @property
    def deletes(self) -> bool:
        """`~key`."""
        return self.text.startswith("~")

    @property
    def adds(self) -> bool:
        """`+key=value` or `++key=value`."""
        return self.text.startswith("+")


class Explainer:
    """Composes parts of a command line on a primary configuration; Hydra must be initialised."""

    def __init__(self, config_name: str, multirun: bool = False) -> None:
        self.config_name = config_name
        self.multirun = multirun
        self.problems: list[str] = []
        self.search_path: list[str] = []

    def explain(self, overrides: Sequence[str], error: Exception) -> list[str]:
        """Every problem of `overrides`, one line each.

        Args:
            overrides: as on the command line; sweeps too where `multirun`.
            error: what Hydra raised; its first line is the answer when nothing else is found.
        """
        self.problems = duplicates(overrides)
        self.search_path = [text for text in overrides if text.startswith("hydra.searchpath=")]
        assignments = list(self._assignments(overrides))
        good = []
        for choice in (a for a in assignments if a.group):
            problem = group_problem(choice, self.search_path)
            good += [] if problem else [choice]
            self.problems += [problem] if problem else []
        cfg = self._compose(good)
        if cfg is not None:
            self.problems += filter(None, (value_problem(a, cfg) for a in assignments if not a.group))
            self._remaining(cfg)
        return list(dict.fromkeys(self.problems)) or [describe(error)]

    def _assignments(self, overrides: Sequence[str]) -> Iterator[Assignment]:
        groups = group_names()
        for text in overrides:
            try:
                override = parse(text)
                if override.is_sweep_override() and not self.multirun:
                    raise ConfigError(f"{text}: several values need -m; one value with a comma needs quotes")
                yield from assignments(override, override.key_or_group in groups)
            except ConfigError as error:
                self.problems += error.problems

    def _compose(self, chosen: Sequence[Assignment]) -> DictConfig | None:
        try:
            texts = [*self.search_path, *(a.text for a in chosen if a.text not in self.search_path)]
            return hydra_compose(self.config_name, overrides=texts, return_hydra_config=True)
        except Exception as error:
            self.problems.append(describe(error))
            return None

    def _remaining(self, cfg: DictConfig) -> None:
        """Problems that only the accepted overrides together show, but no second line for a reported key."""
        reported = {subject(problem) for problem in self.problems}
        try:
            typed(without_hydra(cfg))
        except ConfigError as error:
            self.problems += [problem for problem in error.problems if subject(problem) not in reported]


def parse(text: str) -> Override:
    """One override.

    Raises:
        ConfigError: not Hydra's grammar.
    """
    override = _read(text)
    if override is None:
        raise ConfigError(f"{text!r} cannot be read: {_how_to_write(text)}")
    return override


def _read(text: str) -> Override | None:
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    try:
        (override,) = parser.parse_overrides([text])
    except Exception:
        return None
    return override if override.key_or_group else None


def _how_to_write(text: str) -> str:
    key, equals, value = text.partition("=")
    if not equals or _read(f"{key}=x") is None:
        return "write key=value"
    quoted = '["text","text"]' if value.startswith("[") else '"' + value.replace('"', '\\"') + '"'
    return f"quote text twice, once for the shell and once for Hydra: '{key}={quoted}'"


def assignments(override: Override, is_group: bool) -> list[Assignment]:
    """An override's values, one assignment each."""
    key, text = override.get_key_element(), override.input_line or ""
    if not override.is_sweep_override():
        value = override.value()
        is_group = (is_group or override.key_or_group.startswith("hydra/")) and not isinstance(value, dict)
        return [Assignment(override.key_or_group, text.partition("=")[2], text, value, is_group)]
    return [
        Assignment(override.key_or_group, value, f"{key}={value}", parse(f"{key}={value}").value(), is_group)
        for value in sweep_values(override)
    ]


def sweep_values(override: Override) -> list[str]:
    """The values of a sweep, as written after `key=`.

    Raises:
        ConfigError: an interval, which has no list of values, or an empty list.
    """
    if not override.is_discrete_sweep():
        raise ConfigError(f"{override.input_line}: sweep over values, a,b,c, or range(start,stop)")
    values = list(override.sweep_string_iterator())
    if not values:
        raise ConfigError(f"{override.input_line}: gives no value to sweep over")
    return values


def duplicates(overrides: Sequence[str], among: Sequence[str] | None = None) -> list[str]:
    """Keys (of `among`, where given) that are given more than once: Hydra silently takes the last."""
    keys = Counter(text.partition("=")[0].lstrip("+~") for text in overrides)
    counted = ((key, count) for key, count in keys.items() if among is None or key in among)
    return [f"{key} is given {count} times: give it once" for key, count in counted if count > 1]


def group_names() -> list[str]:
    """The configuration groups."""
    return [name for name in GlobalHydra.instance().config_loader().list_groups("") if name not in HIDDEN]


def group_problem(chosen: Assignment, search_path: list[str]) -> str | None:
    """What is wrong with the choice of an option."""
    if chosen.deletes:
        return None
    options = GlobalHydra.instance().config_loader().get_group_options(chosen.key, overrides=search_path)
    if not options:
        return f"unknown group {chosen.key}"
    value = str(chosen.value.text if isinstance(chosen.value, QuotedString) else chosen.value)
    if value not in options:
        hint = did_you_mean(value, options, prefix=f"{chosen.key}=")
        return f"{chosen.key}={chosen.shown}: no such option (has: {', '.join(options)}){hint}"
    if chosen.adds:
        return f"{chosen.text}: write {chosen.text.lstrip('+')}, without '+'"
    return None


def value_problem(assignment: Assignment, cfg: DictConfig) -> str | None:
    """Set the value in `cfg`, which the chosen options gave, or say what is wrong with it."""
    key = assignment.key
    of_hydra = key.startswith("hydra")
    known = {e.name: e.node for e in entries(cfg) if of_hydra or not e.name.startswith("hydra")}
    if key not in known:
        return f"unknown key {key}{did_you_mean(key, [*known, *group_names()])}"
    if assignment.deletes:
        return f"{assignment.text}: a key cannot be removed; give it another value"
    if assignment.adds and not assignment.text.startswith("++"):
        return f"{assignment.text}: {key} exists already; write {assignment.text[1:]}"
    try:
        OmegaConf.update(cfg, key, assignment.value, merge=True)
    except Exception as error:
        if isinstance(assignment.value, dict):
            return f"{assignment.text}: {describe(error)}"
        return f"{key}={assignment.shown}: expected {expected(known[key])}"
    return None


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
        element = {float: "numbers", int: "integers"}.get(node._metadata.element_type, "texts")
        words = f"a list of {element}, '[a,b]'"
    elif OmegaConf.is_dict(node):
        words = "its keys one by one (this is a group of keys, not a value)"
    else:
        words = "text"
    return words + (" or null" if node._is_optional() else "")


def without_hydra(cfg: DictConfig) -> DictConfig:
    """What the task sees."""
    task = cfg.copy()
    OmegaConf.set_readonly(task, False)
    OmegaConf.set_struct(task, False)
    task.pop("hydra", None)
    return task


def subject(problem: str) -> str:
    """The key that a line is about."""
    return problem.removeprefix("unknown key ").partition("=")[0].partition(" ")[0].rstrip(";:")


def describe(error: BaseException) -> str:
    """One line for what Hydra, OmegaConf or YAML raised, without Hydra's advice to add keys."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is not None:
        return f"{mark.name}, line {mark.line + 1}: not readable as YAML: {problem}"
    if isinstance(error, OmegaConfBaseException):
        return omegaconf_line(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and "raised while composing config" in lines[0]:
        key = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), "")
        return f"{lines[0].partition(':')[0]}: {lines[1]}" + (f" ({key})" if key else "")
    return lines[0] if lines else type(error).__name__
