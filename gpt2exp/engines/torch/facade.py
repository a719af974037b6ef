"""Our optimizers as `torch.optim.Optimizer`s, for training loops that are not ours.

    optimizer = gpt2exp.optim.MuonClip(model, n_head=12, lr=0.02)
    for inputs, targets in batches:
        loss = model(inputs, targets)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

The model needs upstream's parameter names (`transformer.h.0.attn.c_attn.weight`, ...). Learning-rate schedulers work:
they move each group's `lr`. Clipping gradients stays the loop's business. The state is loaded by name, and names,
shapes and dtypes must match; hyperparameters always come from the constructor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from gpt2exp.engines.torch.qk_observer import QKObserver
from gpt2exp.errors import ConfigError
from gpt2exp.optim.base import Recipe, TensorInfo
from gpt2exp.optim.ops import HostOps
from gpt2exp.optim.orthogonalize import Orthogonalizer, OrthogonalizerKind
from gpt2exp.optim.param_groups import OwnedGroup, assign
from gpt2exp.optim.registry import optimizers


class RuleOptimizer(torch.optim.Optimizer):
    """Runs the rules of a recipe over a model's parameters."""

    kind: ClassVar[str]

    def __init__(self, model: nn.Module, n_head: int, recipe: Recipe | None = None, **values: Any) -> None:
        entry = optimizers()[self.kind]
        self.recipe = replace(recipe or entry.recipe(), **values)
        problems = entry.check(self.recipe)
        if problems:
            raise ConfigError(problems)
        named = dict(model.named_parameters())
        tensors = [TensorInfo(name, tuple(p.shape)) for name, p in named.items()]
        self.owned = assign(entry.groups(self.recipe, n_head), tensors)
        super().__init__([self._param_group(group, named) for group in self.owned], {})
        device = next(iter(named.values())).device.type
        self.ops = HostOps(Orthogonalizer(OrthogonalizerKind.auto, device, torch.get_num_threads()))
        clip = entry.qk_clip(self.recipe)
        self.observer = QKObserver(model, clip, bound_first=device == "cpu") if clip else None
        self.steps = 0
        for group in self.owned:
            for tensor in group.tensors:
                self.state[named[tensor.name]] = {
                    slot: torch.zeros_like(named[tensor.name]) for slot in group.rule.slots
                }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update from the gradients in place; parameters without a gradient count as gradient zero."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.steps += 1
        for group, owned in zip(self.param_groups, self.owned, strict=True):
            self._update(group, owned)
        if self.observer is not None:
            self.observer.rescale()
            self.observer.reset()
        return loss

    def _update(self, group: dict[str, Any], owned: OwnedGroup) -> None:
        params = group["params"]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
        slots = {slot: [self.state[p][slot] for p in params] for slot in owned.rule.slots}
        factor = group["lr"] / group["peak_lr"] if group["peak_lr"] else 0.0
        owned.rule.update(self.ops, params, grads, slots, owned.rule.step_scalars(self.steps, factor))

    def _param_group(self, group: OwnedGroup, named: dict[str, nn.Parameter]) -> dict[str, Any]:
        peak = group.rule.step_scalars(1, 1.0)["lr"]
        names = [tensor.name for tensor in group.tensors]
        return {"params": [named[name] for name in names], "names": names, "lr": peak, "peak_lr": peak}

    def state_dict(self) -> dict[str, Any]:
        """`{"step", "slots"}` with slots as `<slot>/<parameter name>`; no hyperparameters."""
        return {"step": self.steps, "slots": {name: tensor.clone() for name, tensor in self._named_slots()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave.

        Raises:
            ConfigError: naming every slot that is missing, foreign, or of another shape or dtype.
        """
        mine, theirs = dict(self._named_slots()), state_dict["slots"]
        problems = [f"slot {name}: missing" for name in mine.keys() - theirs.keys()]
        problems += [f"slot {name}: not in this optimizer" for name in theirs.keys() - mine.keys()]
        problems += [
            f"slot {name}: found {theirs[name].dtype} {list(theirs[name].shape)}, expected {tensor.dtype} "
            f"{list(tensor.shape)}"
            for name, tensor in mine.items()
            if name in theirs and (theirs[name].shape, theirs[name].dtype) != (tensor.shape, tensor.dtype)
        ]
        if problems:
            raise ConfigError(sorted(problems))
        for name, tensor in mine.items():
            tensor.copy_(theirs[name])
        self.steps = int(state_dict["step"])

    def _named_slots(self) -> list[tuple[str, torch.Tensor]]:
        return [
            (f"{slot}/{name}", self.state[p][slot])
            for group, owned in zip(self.param_groups, self.owned, strict=True)
            for slot in owned.rule.slots
            for name, p in zip(group["names"], group["params"], strict=True)
        ]


class AdamW(RuleOptimizer):
    """`optimizer=adamw`."""

    kind = "adamw"


class SGD(RuleOptimizer):
    """`optimizer=sgd`."""

    kind = "sgd"


class Muon(RuleOptimizer):
    """`optimizer=muon`: hidden matrices by Muon, the rest by AdamW."""

    kind = "muon"


class MuonClip(RuleOptimizer):
    """`optimizer=muonclip`: Muon with per-head QK clip; hooks observe c_attn in training mode."""

    kind = "muonclip"
