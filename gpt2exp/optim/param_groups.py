"""Which parameter group owns which tensor: ordered rules, first match wins, exact cover."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from gpt2exp.errors import ConfigError
from gpt2exp.optim.base import GroupRule, Rule, TensorInfo


class DecayScope(Enum):
    """Which tensors weight decay touches."""

    matrices = "matrices"
    """Every tensor of two or more dimensions, embeddings too: upstream's and nanoGPT's choice."""
    hidden = "hidden"
    """Only the weight matrices inside the blocks."""
    none = "none"


@dataclass(frozen=True)
class OwnedGroup:
    """A group with the tensors it owns, in the model's own order."""

    name: str
    rule: Rule
    tensors: tuple[TensorInfo, ...]


def decays(scope: DecayScope) -> Callable[[TensorInfo], bool]:
    """Predicate of the tensors that `scope` decays."""
    if scope is DecayScope.matrices:
        return lambda tensor: len(tensor.shape) >= 2
    if scope is DecayScope.hidden:
        return lambda tensor: tensor.hidden_matrix
    return lambda tensor: False


def decay_groups(
    scope: DecayScope, weight_decay: float, rule: Callable[[float], Rule], prefix: str = ""
) -> tuple[GroupRule, ...]:
    """The usual two groups: `decay` with `weight_decay`, `no_decay` with zero.

    Args:
        scope: which tensors decay; with `none` there is only `no_decay`.
        weight_decay: decay of the first group.
        rule: makes the update rule for a given decay.
        prefix: of the groups' names.
    """
    rest = GroupRule(f"{prefix}no_decay", lambda tensor: True, rule(0.0))
    if scope is DecayScope.none:
        return (rest,)
    return (GroupRule(f"{prefix}decay", decays(scope), rule(weight_decay)), rest)


def assign(groups: Sequence[GroupRule], tensors: Sequence[TensorInfo]) -> tuple[OwnedGroup, ...]:
    """Give every tensor to the first group that accepts it.

    Raises:
        ConfigError: a tensor that no group owns, or a group that owns nothing; the tensors are named.
    """
    owned: dict[str, list[TensorInfo]] = {group.name: [] for group in groups}
    homeless = []
    for tensor in tensors:
        owner = next((group.name for group in groups if group.owns(tensor)), None)
        if owner is None:
            homeless.append(tensor.name)
        else:
            owned[owner].append(tensor)
    problems = [f"no parameter group owns {', '.join(homeless)}"] if homeless else []
    problems += [f"parameter group '{name}' matches no tensor" for name, got in owned.items() if not got]
    if problems:
        raise ConfigError(problems)
    return tuple(OwnedGroup(group.name, group.rule, tuple(owned[group.name])) for group in groups)
