"""How far an engine may be from the CPU torch reference in the same precision, and why that far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from gpt2exp.config import Precision
from gpt2exp.errors import ConfigError
from gpt2exp.optim.adamw import AdamWRecipe
from gpt2exp.optim.base import Recipe
from gpt2exp.optim.muon import MuonRecipe


class Measure(Enum):
    """What a limit is a limit of."""

    absolute = "absolute"
    """The largest difference."""
    of_largest = "of_largest"
    """The largest difference as a share of the largest magnitude in the reference's tensor."""


@dataclass(frozen=True)
class Bound:
    """The largest difference that passes (`limit` itself does), and the reason it is not smaller."""

    limit: float
    measure: Measure
    reason: str

    def __str__(self) -> str:
        if self.limit == 0:
            return "equal"
        return f"{self.limit:.2g}" + (" of largest" if self.measure is Measure.of_largest else "")


@dataclass(frozen=True)
class Tolerances:
    """Bounds by quantity. Counts (clipped heads, wrong tokens), gating, learning rates and initial weights are equal.

    `gradient` is of one accumulated update from equal weights; `weight` and `slot` hold after every step.
    """

    name: str
    loss: Bound
    grad_norm: Bound
    clip_coef: Bound
    qk_maximum: Bound
    gradient: Bound
    weight: Bound
    slot: Bound

    @property
    def bounds(self) -> dict[str, Bound]:
        """By name, as people read it."""
        return {
            "loss": self.loss,
            "grad norm": self.grad_norm,
            "clip coef": self.clip_coef,
            "QK maximum": self.qk_maximum,
            "gradients": self.gradient,
            "weights": self.weight,
            "slots": self.slot,
        }


EQUAL = Bound(0.0, Measure.absolute, "counted, decided on the host, or drawn from the same seed")

FP32 = Tolerances(
    "fp32 against fp32",
    loss=Bound(2e-6, Measure.absolute, "four units in the last place of a mean near 5: three were seen on 8 devices"),
    grad_norm=Bound(1e-6, Measure.of_largest, "a sum of squares in another order"),
    clip_coef=Bound(1e-6, Measure.of_largest, "max_norm over the gradient norm"),
    qk_maximum=Bound(1e-5, Measure.absolute, "dot products in another order"),
    gradient=Bound(1e-7, Measure.absolute, "sums over rows in another order, means taken over devices"),
    weight=Bound(
        2e-6,
        Measure.absolute,
        "AdamW on key biases, whose gradient is rounding; Newton-Schulz on small singular values",
    ),
    slot=Bound(1e-5, Measure.of_largest, "sums of gradients taken at weights that differ by as much as `weights` may"),
)

FP64 = Tolerances(
    "fp64 against fp64",
    loss=Bound(1e-14, Measure.of_largest, "sums in another order"),
    grad_norm=Bound(1e-14, Measure.of_largest, "a sum of squares in another order"),
    clip_coef=Bound(1e-14, Measure.of_largest, "max_norm over the gradient norm"),
    qk_maximum=Bound(1e-14, Measure.absolute, "dot products in another order"),
    gradient=Bound(1e-15, Measure.absolute, "sums over rows in another order"),
    weight=Bound(1e-14, Measure.absolute, "AdamW on key biases, whose gradient is rounding; Newton-Schulz"),
    slot=Bound(1e-14, Measure.of_largest, "sums of gradients taken at weights that differ by as much as `weights` may"),
)

SQL = Tolerances(
    "fp64 in SQL against fp64",
    loss=Bound(1e-14, Measure.of_largest, "sums in another order"),
    grad_norm=Bound(1e-14, Measure.of_largest, "a sum of squares in another order"),
    clip_coef=Bound(1e-14, Measure.of_largest, "max_norm over the gradient norm"),
    qk_maximum=Bound(1e-14, Measure.of_largest, "dot products in another order"),
    gradient=Bound(1e-14, Measure.absolute, "sums over rows in another order; the largest gradients are near 1"),
    weight=Bound(1e-14, Measure.of_largest, "sums in another order"),
    slot=Bound(1e-14, Measure.of_largest, "sums in another order"),
)
SQL_BIASES = replace(
    SQL,
    weight=Bound(1e-10, Measure.of_largest, "AdamW on key biases, whose gradient is rounding"),
    slot=Bound(1e-12, Measure.of_largest, "sums of gradients taken at weights that differ by as much as `weights` may"),
    loss=replace(SQL.loss, limit=1e-12),
    grad_norm=replace(SQL.grad_norm, limit=1e-12),
    clip_coef=replace(SQL.clip_coef, limit=1e-12),
    qk_maximum=replace(SQL.qk_maximum, limit=1e-12),
)
"""For a model with biases: one weight that rounding moved shows in everything after it."""

STATED_AT = 6e-4
"""The auxiliary AdamW's peak learning rate for which `weight` is stated."""
ADAMW_SHARE = 0.01
"""Of AdamW's peak rate: how far weights may be apart whose gradient is of the size of eps and below."""

TOLERANCES = {
    ("cpu", Precision.fp32): FP32,
    ("cpu", Precision.fp64): FP64,
    ("xla_cpu", Precision.fp32): FP32,
    ("tpu", Precision.fp32): FP32,
    ("duckdb", Precision.fp64): SQL,
    ("datafusion", Precision.fp64): SQL,
}
"""By hardware kind and precision. A TPU's fp32 (`highest`) is held to what virtual devices keep: not measured there."""


def tolerances(kind: str, precision: Precision, recipe: Recipe, bias: bool = True) -> Tolerances:
    """The bounds of a hardware kind in a precision, for an optimizer at its learning rates and a model's biases.

    Raises:
        ConfigError: none are stated.
    """
    if (kind, precision) in TOLERANCES:
        bounds = TOLERANCES[kind, precision]
        return for_optimizer(SQL_BIASES if bounds is SQL and bias else bounds, recipe)
    stated = [other.name for of, other in TOLERANCES if of == kind]
    if not stated:
        raise ConfigError(f"hardware.kind={kind}: no tolerances are stated for it")
    raise ConfigError(
        f"precision={precision.name}: no tolerances are stated for it on hardware.kind={kind}, because rounding hides "
        f"mistakes; verify with precision={' or '.join(stated)}"
    )


def for_optimizer(bounds: Tolerances, recipe: Recipe) -> Tolerances:
    """AdamW divides gradients by their own size: rounding in tiny ones moves weights by a share of the learning rate.

    Under Muon that concerns the auxiliary tensors: most of all the key biases, whose gradient is zero but for rounding
    (softmax does not see what is added to all keys). Under AdamW it concerns every weight with a gradient near eps.
    """
    if isinstance(recipe, MuonRecipe) and recipe.aux.lr > STATED_AT and bounds is not SQL:
        limit = bounds.weight.limit * recipe.aux.lr / STATED_AT
        return replace(bounds, weight=replace(bounds.weight, limit=limit))
    if isinstance(recipe, AdamWRecipe) and bounds is FP32:
        weight = Bound(
            ADAMW_SHARE * recipe.lr, Measure.absolute, "a hundredth of AdamW's rate, where gradients are tiny"
        )
        return replace(bounds, weight=weight, slot=replace(bounds.slot, limit=10 * bounds.slot.limit))
    return bounds
