"""How large a recipe's updates really are: what learning rates of different optimizers do not tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpt2exp.config import Config
from gpt2exp.data.windows import Window
from gpt2exp.engines.base import Array, Engine
from gpt2exp.optim.base import TensorInfo
from gpt2exp.optim.param_groups import OwnedGroup, assign
from gpt2exp.optim.registry import optimizers


@dataclass(frozen=True)
class EffectiveStep:
    """One parameter group at the peak learning rate.

    `update_rms` and `spectral_norm` (the largest over the group's matrices) are of the first update at the
    initial weights, decay left out; `decay` is the share of a weight that one step removes, `half_life` the
    steps after which decay alone would have halved it. `hotter` compares a matrix optimizer's scale with
    sqrt(max(1, A/B)) (KellerJordan/Muon), smallest and largest over the group's shapes.
    """

    group: str
    tensors: int
    parameters: int
    lr: float
    update_rms: float
    spectral_norm: float | None
    decay: float
    half_life: float | None
    hotter: tuple[float, float] | None


def effective_steps(cfg: Config, engine: Engine, window: Window) -> list[EffectiveStep]:
    """Make one update at the peak learning rate and measure it; the engine is used up."""
    before = engine.weights()
    engine.update(1, window, 1.0)
    after = engine.weights()
    rules = optimizers()[cfg.optimizer.kind].groups(cfg.optimizer, cfg.model.n_head)
    owned = assign(rules, [TensorInfo(name, array.shape) for name, array in before.items()])
    return [measured(group, before, after) for group in owned]


def measured(group: OwnedGroup, before: Mapping[str, Array], after: Mapping[str, Array]) -> EffectiveStep:
    """The record of one group."""
    scalars = group.rule.step_scalars(1, 1.0)
    keep = scalars.get("keep", 1.0)
    moved = {t.name: after[t.name].astype(np.float64) - keep * before[t.name] for t in group.tensors}
    count = sum(array.size for array in moved.values())
    matrices = [array for array in moved.values() if array.ndim == 2]
    return EffectiveStep(
        group=group.name,
        tensors=len(group.tensors),
        parameters=count,
        lr=scalars["lr"],
        update_rms=math.sqrt(sum(float(np.square(array).sum()) for array in moved.values()) / count),
        spectral_norm=max(map(spectral_norm, matrices)) if matrices else None,
        decay=1 - keep,
        half_life=math.log(0.5) / math.log(keep) if keep < 1 else None,
        hotter=hotter_than_keller_jordan(group),
    )


def spectral_norm(matrix_AB: Array) -> float:
    """Largest singular value, from the smaller Gram matrix."""
    x_NM = matrix_AB if matrix_AB.shape[0] <= matrix_AB.shape[1] else matrix_AB.T
    return math.sqrt(max(0.0, float(np.linalg.eigvalsh(x_NM @ x_NM.T)[-1])))


def hotter_than_keller_jordan(group: OwnedGroup) -> tuple[float, float] | None:
    """Scale over sqrt(max(1, A/B)), smallest and largest; None for rules without a scale of their own."""
    scale_of: Any = getattr(group.rule, "scale_of", None)
    if scale_of is None:
        return None
    blocks = getattr(group.rule, "row_blocks", 1)
    shapes = [(tensor.shape[0] // blocks, tensor.shape[1]) for tensor in group.tensors]
    ratios = [scale_of(shape) / math.sqrt(max(1.0, shape[0] / shape[1])) for shape in shapes]
    return min(ratios), max(ratios)
