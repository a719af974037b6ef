"""Muon (Keller Jordan, 2024) on the hidden matrices, AdamW on every other tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from gpt2exp.optim.adamw import AdamWRule
from gpt2exp.optim.base import Clip, GroupRule, Optimizer, Recipe, TensorInfo
from gpt2exp.optim.checks import check_beta, check_decay, check_positive, check_scale
from gpt2exp.optim.newton_schulz import NSPrecision, Polynomial
from gpt2exp.optim.orthogonalize import OrthogonalMap
from gpt2exp.optim.param_groups import DecayScope, decay_groups

if TYPE_CHECKING:
    import torch

    from gpt2exp.optim.ops import Ops


class MomentumForm(Enum):
    """How the buffer gathers gradients; the directions agree at constant momentum, the buffers differ."""

    heavy_ball = "heavy_ball"
    """b <- mu b + g (Moonlight)."""
    ema = "ema"
    """b <- mu b + (1 - mu) g (KellerJordan/Muon, `torch.optim.Muon`)."""


class ScaleRule(Enum):
    """What multiplies the orthogonalized update of an A x B matrix."""

    rms = "rms"
    """0.2 sqrt(max(A, B)): the root mean square of an AdamW update (Moonlight)."""
    spectral = "spectral"
    """sqrt(max(1, A/B)) (KellerJordan/Muon)."""
    none = "none"


class QKVBlocks(Enum):
    """Into which row blocks the packed c_attn is cut before orthogonalizing."""

    packed = "packed"
    split = "split"
    per_head = "per_head"


class ClipScope(Enum):
    """Which gradients the global-norm clip measures and scales."""

    all = "all"
    aux_only = "aux_only"
    none = "none"


@dataclass(frozen=True)
class AuxRecipe:
    """AdamW for the tensors that Muon does not own: what the same tensors get under `optimizer=adamw`."""

    lr: float = 6e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    decay_scope: DecayScope = DecayScope.matrices


@dataclass(frozen=True)
class MuonRecipe(Recipe):
    """Everything that changes the update, and so the identity."""

    kind: str = "muon"
    label: str = "muon"
    lr: float = 0.02
    momentum: float = 0.95
    momentum_form: MomentumForm = MomentumForm.heavy_ball
    nesterov: bool = True
    polynomial: Polynomial = Polynomial.ns5
    ns_steps: int = 5
    ns_precision: NSPrecision = NSPrecision.fp32
    scale: ScaleRule = ScaleRule.rms
    weight_decay: float = 0.1
    qkv: QKVBlocks = QKVBlocks.packed
    clip_scope: ClipScope = ClipScope.all
    max_grad_norm: float = 1.0
    aux: AuxRecipe = field(default_factory=AuxRecipe)


@dataclass(frozen=True)
class MuonRule:
    """b <- mu b + g; u = g + mu b; W <- (1 - lr wd) W - lr s(A, B) orthogonalized(u)."""

    recipe: MuonRecipe
    row_blocks: int = 1
    slots: tuple[str, ...] = ("momentum_buffer",)

    def step_scalars(self, step: int, lr_factor: float) -> dict[str, float]:
        """Decay uses the unscaled learning rate, as in every published Muon."""
        lr = self.recipe.lr * lr_factor
        return {"lr": lr, "keep": 1 - lr * self.recipe.weight_decay}

    def update(
        self,
        ops: Ops,
        params: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor],
        slots: Mapping[str, Sequence[torch.Tensor]],
        scalars: Mapping[str, Any],
    ) -> None:
        """The whole group at once, so that the backend may batch or share out the matrices."""
        recipe, buffers = self.recipe, slots["momentum_buffer"]
        targets, gradients, momenta = (
            [block for tensor in tensors for block in tensor.chunk(self.row_blocks)]
            for tensors in (params, grads, buffers)
        )
        amounts = [scalars["lr"] * self.scale_of(block.shape) for block in targets]
        which = OrthogonalMap(recipe.polynomial, recipe.ns_steps, recipe.ns_precision)
        updates = [partial(self._direction, ops, g, b) for g, b in zip(gradients, momenta, strict=True)]
        ops.orthogonal_step(targets, updates, scalars["keep"], amounts, which)

    def _direction(self, ops: Ops, gradient: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        """Move the buffer; a Nesterov direction takes the gradient's place."""
        mu, nesterov = self.recipe.momentum, self.recipe.nesterov
        for g, b in ops.tiles([gradient], [buffer]):
            if self.recipe.momentum_form is MomentumForm.ema:
                b.lerp_(g, 1 - mu)
                if nesterov:
                    g.lerp_(b, mu)
            else:
                b.mul_(mu).add_(g)
                if nesterov:
                    g.add_(b, alpha=mu)
        return gradient if nesterov else buffer

    def scale_of(self, shape: Sequence[int]) -> float:
        """Factor of an A x B block."""
        rows, columns = shape
        if self.recipe.scale is ScaleRule.rms:
            return 0.2 * math.sqrt(max(rows, columns))
        if self.recipe.scale is ScaleRule.spectral:
            return math.sqrt(max(1.0, rows / columns))
        return 1.0


def groups(recipe: MuonRecipe, n_head: int) -> tuple[GroupRule, ...]:
    """Hidden matrices (c_attn apart where it is cut into blocks), then the auxiliary AdamW's groups."""
    row_blocks = {QKVBlocks.packed: 1, QKVBlocks.split: 3, QKVBlocks.per_head: 3 * n_head}[recipe.qkv]
    hidden = [GroupRule("hidden", _is_hidden, MuonRule(recipe))]
    if row_blocks > 1:
        hidden.insert(0, GroupRule("hidden_qkv", _is_qkv, MuonRule(recipe, row_blocks)))
    return (*hidden, *aux_groups(recipe.aux))


def aux_groups(aux: AuxRecipe) -> tuple[GroupRule, ...]:
    """`aux_decay` and `aux_no_decay`: the adamw rule itself."""
    return decay_groups(
        aux.decay_scope,
        aux.weight_decay,
        lambda weight_decay: AdamWRule(aux.lr, aux.betas, aux.eps, weight_decay),
        prefix="aux_",
    )


def clip(recipe: MuonRecipe) -> Clip:
    """The global-norm clip, over everything or over the auxiliary groups."""
    if recipe.clip_scope is ClipScope.none:
        return Clip(0.0)
    scope = "aux_" if recipe.clip_scope is ClipScope.aux_only else ""
    return Clip(recipe.max_grad_norm, scope)


def check(recipe: MuonRecipe) -> list[str]:
    """Problems of the values."""
    aux = recipe.aux
    problems = [
        *check_scale("lr", recipe.lr),
        *check_beta("momentum", recipe.momentum),
        *check_decay("weight_decay", recipe.weight_decay, recipe.lr),
        *check_scale("max_grad_norm", recipe.max_grad_norm),
        *check_scale("aux.lr", aux.lr),
        *check_beta("aux.betas[0]", aux.betas[0]),
        *check_beta("aux.betas[1]", aux.betas[1]),
        *check_positive("aux.eps", aux.eps),
        *check_decay("aux.weight_decay", aux.weight_decay, aux.lr),
    ]
    if not 1 <= recipe.ns_steps <= 30:
        problems.append(f"optimizer.ns_steps={recipe.ns_steps}: must lie in 1..30")
    if aux.decay_scope is DecayScope.hidden:
        problems.append("optimizer.aux.decay_scope=hidden: the hidden matrices are Muon's; use matrices or none")
    return problems


def _is_hidden(tensor: TensorInfo) -> bool:
    return tensor.hidden_matrix


def _is_qkv(tensor: TensorInfo) -> bool:
    return tensor.hidden_matrix and tensor.name.endswith("attn.c_attn.weight")


OPTIMIZER = Optimizer("muon", MuonRecipe, groups, check, clip)
