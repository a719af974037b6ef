"""What an optimizer is made of: a recipe (its config schema) and a rule for each parameter group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from gpt2exp.optim.ops import Ops
    from gpt2exp.optim.qk_clip import QKClip


@dataclass(frozen=True)
class Recipe:
    """Base of every optimizer's configuration; `kind` picks the rule, `label` names the arm."""

    kind: str = "???"
    label: str = "???"


@dataclass(frozen=True)
class TensorInfo:
    """What ownership rules may look at: upstream's parameter name and its shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def hidden_matrix(self) -> bool:
        """True for the weight matrices inside the blocks (48 of them in GPT-2)."""
        return len(self.shape) == 2 and ".h." in self.name


class Rule(Protocol):
    """An in-place update over one whole parameter group."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the per-parameter state tensors, all starting at zero."""

    def step_scalars(self, step: int, lr_factor: float) -> dict[str, float]:
        """Numbers of update `step` (counted from 1) under the schedule's factor."""

    def update(
        self,
        ops: Ops,
        params: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor],
        slots: Mapping[str, Sequence[torch.Tensor]],
        scalars: Mapping[str, Any],
    ) -> None:
        """Move `params` and `slots` in place; `grads` may be overwritten."""


@dataclass(frozen=True)
class GroupRule:
    """One ordered ownership rule: the first group whose `owns` accepts a tensor gets it."""

    name: str
    owns: Callable[[TensorInfo], bool]
    rule: Rule


@dataclass(frozen=True)
class Clip:
    """Global-norm clip: `max_norm` 0 turns it off; it covers the groups whose name starts with `scope`."""

    max_norm: float
    scope: str = ""


def clip_everything(recipe: Any) -> Clip:
    """The usual clip: all gradients at `max_grad_norm`; recipes without that key do not clip."""
    return Clip(float(getattr(recipe, "max_grad_norm", 0.0)))


def no_qk_clip(recipe: Any) -> QKClip | None:
    """Most optimizers leave attention logits alone."""
    return None


@dataclass(frozen=True)
class Optimizer:
    """A registry entry: how `kind` is configured and how it splits and updates the parameters.

    `groups` takes the recipe and the model's number of heads; `check` gives problems of a recipe's values, one
    line each, as `optimizer.<key>=<found>: <what is right>`; `qk_clip` asks for a QK clip after each update.
    """

    kind: str
    recipe: type[Recipe]
    groups: Callable[[Any, int], tuple[GroupRule, ...]]
    check: Callable[[Any], list[str]]
    clip: Callable[[Any], Clip] = clip_everything
    qk_clip: Callable[[Any], QKClip | None] = no_qk_clip
