"""What a conformance row is, and how a rule is run outside an engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpt2exp.optim.base import Recipe, TensorInfo
from gpt2exp.optim.ops import TILE_ELEMENTS, HostOps
from gpt2exp.optim.orthogonalize import Orthogonalizer, OrthogonalizerKind
from gpt2exp.optim.param_groups import assign
from gpt2exp.optim.registry import optimizers

N_HEAD = 2
Arrays = dict[str, np.ndarray]
Reference = Callable[[Any, Arrays, Sequence[Arrays], Sequence[float]], Arrays]

SHAPES = {
    "transformer.wte.weight": (11, 8),
    "transformer.wpe.weight": (6, 8),
    "transformer.h.0.ln_1.weight": (8,),
    "transformer.h.0.attn.c_attn.weight": (24, 8),
    "transformer.h.0.attn.c_attn.bias": (24,),
    "transformer.h.0.attn.c_proj.weight": (8, 8),
    "transformer.h.0.mlp.c_fc.weight": (32, 8),
    "transformer.h.0.mlp.c_proj.weight": (8, 32),
}
"""A GPT's kinds of tensor in miniature: embeddings, vectors, square, tall and wide hidden matrices."""


@dataclass(frozen=True)
class Row:
    """One optimizer of the table.

    `reference` is a slow float64 NumPy form written from the definition; `peer` builds the public optimizer
    that `peer_recipes` (default: all) must equal to the bit, with the same parameter groups, or is None where
    none exists. `tolerance` is what the rule's own arithmetic may differ from the reference in float64.
    """

    kind: str
    recipes: tuple[Recipe, ...]
    reference: Reference
    peer: Callable[[Any, Mapping[str, torch.Tensor]], Any] | None = None
    peer_recipes: tuple[Recipe, ...] | None = None
    tolerance: float = 1e-12


def rows() -> list[Row]:
    """One row for each file of this folder that defines ROW."""
    found = []
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if file.name.startswith("test_") or file.stem in ("harness", "conftest"):
            continue
        found.append(load(file.stem).ROW)
    return found


def load(kind: str) -> Any:
    """The module of a row."""
    spec = importlib.util.spec_from_file_location(f"conformance_{kind}", Path(__file__).parent / f"{kind}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def host_ops(tile_elements: int = TILE_ELEMENTS, kind: OrthogonalizerKind = OrthogonalizerKind.auto) -> HostOps:
    """The CPU's operations."""
    return HostOps(Orthogonalizer(kind, "cpu", 1), tile_elements)


class WithFactor:
    """A torch optimizer whose learning rates follow a factor."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.peaks = [group["lr"] for group in optimizer.param_groups]

    def step(self, factor: float) -> None:
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        self.optimizer.step()


@dataclass
class Stepper:
    """A recipe applied to a dict of tensors, as an engine applies it."""

    recipe: Recipe
    params: dict[str, torch.Tensor]
    step: int = 0
    ops: HostOps = field(default_factory=host_ops)

    def __post_init__(self) -> None:
        rules = optimizers()[self.recipe.kind].groups(self.recipe, N_HEAD)
        self.groups = assign(rules, [TensorInfo(n, tuple(p.shape)) for n, p in self.params.items()])
        self.slots = {
            (group.name, slot): [torch.zeros_like(self.params[t.name]) for t in group.tensors]
            for group in self.groups
            for slot in group.rule.slots
        }

    def apply(self, grads: Mapping[str, torch.Tensor], lr_factor: float = 1.0) -> None:
        self.step += 1
        for group in self.groups:
            group.rule.update(
                self.ops,
                [self.params[t.name] for t in group.tensors],
                [grads[t.name].clone() for t in group.tensors],
                {slot: self.slots[group.name, slot] for slot in group.rule.slots},
                group.rule.step_scalars(self.step, lr_factor),
            )


def random_tensors(seed: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """One tensor of each shape, the same numbers in every dtype."""
    rng = np.random.default_rng(seed)
    return {name: torch.tensor(scale * rng.standard_normal(shape)).to(dtype) for name, shape in SHAPES.items()}


def arrays(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """Copies as float64 arrays."""
    return {name: tensor.double().numpy().copy() for name, tensor in tensors.items()}


def decays(recipe: Any, name: str, shape: tuple[int, ...]) -> bool:
    """Whether weight decay touches a tensor, said again independently of the product's predicate."""
    return {
        "matrices": len(shape) >= 2,
        "hidden": len(shape) == 2 and "transformer.h." in name,
        "none": False,
    }[recipe.decay_scope.name]


def with_same_groups(recipe: Any, params: Mapping[str, torch.Tensor], wd: float) -> list[dict[str, Any]]:
    """Parameter groups for a torch optimizer."""
    decayed = [p for n, p in params.items() if decays(recipe, n, tuple(p.shape))]
    rest = [p for n, p in params.items() if not decays(recipe, n, tuple(p.shape))]
    groups = [{"params": decayed, "weight_decay": wd}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
