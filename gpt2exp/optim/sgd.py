"""Stochastic gradient descent with optional momentum, bit-equal to `torch.optim.SGD` on CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpt2exp.optim.base import GroupRule, Optimizer, Recipe
from gpt2exp.optim.checks import check_beta, check_scale
from gpt2exp.optim.param_groups import DecayScope, decay_groups

if TYPE_CHECKING:
    import torch

    from gpt2exp.optim.ops import Ops


@dataclass(frozen=True)
class SGDRecipe(Recipe):
    """Plain SGD; `weight_decay` is coupled (added to the gradient), as in PyTorch."""

    kind: str = "sgd"
    label: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    decay_scope: DecayScope = DecayScope.none
    max_grad_norm: float = 1.0


@dataclass(frozen=True)
class SGDRule:
    """b <- mu b + g; W <- W - lr u, with u = g + mu b (Nesterov), else b; without momentum u = g."""

    lr: float
    momentum: float
    nesterov: bool
    weight_decay: float

    @property
    def slots(self) -> tuple[str, ...]:
        """One momentum buffer, where there is momentum."""
        return ("momentum_buffer",) if self.momentum else ()

    def step_scalars(self, step: int, lr_factor: float) -> dict[str, float]:
        """SGD has no bias correction: only the learning rate moves."""
        return {"lr": self.lr * lr_factor}

    def update(
        self,
        ops: Ops,
        params: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor],
        slots: Mapping[str, Sequence[torch.Tensor]],
        scalars: Mapping[str, Any],
    ) -> None:
        """Tile by tile; a zero-initialised buffer makes the first step PyTorch's `b = g`."""
        buffers = slots["momentum_buffer"] if self.momentum else grads
        for p, g, b in ops.tiles(params, grads, buffers):
            if self.weight_decay:
                g.add_(p, alpha=self.weight_decay)
            if self.momentum:
                b.mul_(self.momentum).add_(g)
            u = g.add(b, alpha=self.momentum) if self.nesterov else b
            ops.subtract_scaled(p, u, scalars["lr"])


def groups(recipe: SGDRecipe, n_head: int) -> tuple[GroupRule, ...]:
    """`decay` and `no_decay`, as the recipe's scope says."""
    return decay_groups(
        recipe.decay_scope,
        recipe.weight_decay,
        lambda weight_decay: SGDRule(recipe.lr, recipe.momentum, recipe.nesterov, weight_decay),
    )


def check(recipe: SGDRecipe) -> list[str]:
    """Problems of the values."""
    problems = [
        *check_scale("lr", recipe.lr),
        *check_beta("momentum", recipe.momentum),
        *check_scale("weight_decay", recipe.weight_decay),
        *check_scale("max_grad_norm", recipe.max_grad_norm),
    ]
    if recipe.nesterov and not recipe.momentum:
        problems.append("optimizer.nesterov=true: needs optimizer.momentum greater than 0")
    return problems


OPTIMIZER = Optimizer("sgd", SGDRecipe, groups, check)
