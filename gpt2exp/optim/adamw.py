"""AdamW (Loshchilov & Hutter, 2019), bit-equal to `torch.optim.AdamW` on CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpt2exp.optim.base import GroupRule, Optimizer, Recipe
from gpt2exp.optim.checks import check_beta, check_decay, check_positive, check_scale
from gpt2exp.optim.param_groups import DecayScope, decay_groups

if TYPE_CHECKING:
    import torch

    from gpt2exp.optim.ops import Ops


@dataclass(frozen=True)
class AdamWRecipe(Recipe):
    """Defaults are upstream's GPT-2 settings (karpathy/llm.c, `configure_optimizers`)."""

    kind: str = "adamw"
    label: str = "adamw"
    lr: float = 6e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    decay_scope: DecayScope = DecayScope.matrices
    max_grad_norm: float = 1.0


@dataclass(frozen=True)
class AdamWRule:
    """m <- b1 m + (1-b1) g; v <- b2 v + (1-b2) g²; W <- (1 - lr wd) W - lr m̂ / (sqrt(v̂) + eps)."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    slots: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def step_scalars(self, step: int, lr_factor: float) -> dict[str, float]:
        """Bias corrections are folded in here, so that every engine divides by the same numbers."""
        lr = self.lr * lr_factor
        beta1, beta2 = self.betas
        return {
            "lr": lr,
            "keep": 1 - lr * self.weight_decay,
            "step_size": lr / (1 - beta1**step),
            "second_moment_scale": (1 - beta2**step) ** 0.5,
        }

    def update(
        self,
        ops: Ops,
        params: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor],
        slots: Mapping[str, Sequence[torch.Tensor]],
        scalars: Mapping[str, Any],
    ) -> None:
        """Same operations in the same order as PyTorch's loop implementation, tile by tile."""
        beta1, beta2 = self.betas
        for p, g, m, v in ops.tiles(params, grads, slots["exp_avg"], slots["exp_avg_sq"]):
            if self.weight_decay:
                p.mul_(scalars["keep"])
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            denominator = v.sqrt().div_(scalars["second_moment_scale"]).add_(self.eps)
            ops.subtract_ratio(p, m, denominator, scalars["step_size"])


def groups(recipe: AdamWRecipe, n_head: int) -> tuple[GroupRule, ...]:
    """`decay` and `no_decay`, as the recipe's scope says."""
    return decay_groups(
        recipe.decay_scope,
        recipe.weight_decay,
        lambda weight_decay: AdamWRule(recipe.lr, recipe.betas, recipe.eps, weight_decay),
    )


def check(recipe: AdamWRecipe) -> list[str]:
    """Problems of the values."""
    return [
        *check_scale("lr", recipe.lr),
        *check_beta("betas[0]", recipe.betas[0]),
        *check_beta("betas[1]", recipe.betas[1]),
        *check_positive("eps", recipe.eps),
        *check_decay("weight_decay", recipe.weight_decay, recipe.lr),
        *check_scale("max_grad_norm", recipe.max_grad_norm),
    ]


OPTIMIZER = Optimizer("adamw", AdamWRecipe, groups, check)
