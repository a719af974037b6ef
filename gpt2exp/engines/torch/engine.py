"""The PyTorch engine: accumulate over micro-batches, clip, gate, update in place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import get_total_norm

from gpt2exp.data.windows import Window
from gpt2exp.engines.base import Array, EngineState, EvalRecord, QKRecord, UpdateRecord, mismatches
from gpt2exp.engines.torch.backends.base import Backend
from gpt2exp.engines.torch.qk_observer import QKObserver
from gpt2exp.errors import ConfigError
from gpt2exp.optim.base import Clip, GroupRule, TensorInfo
from gpt2exp.optim.ops import TILE_ELEMENTS
from gpt2exp.optim.param_groups import assign
from gpt2exp.optim.qk_clip import QKClip

CLIP_EPSILON = 1e-6
"""Added to the norm before dividing, as `torch.nn.utils.clip_grad_norm_` does."""


class TorchEngine:
    """Trains `model` with the rules of `groups`; implements `gpt2exp.engines.base.Engine`."""

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[GroupRule],
        backend: Backend,
        *,
        micro_batch_size: int,
        clip: Clip,
        qk_clip: QKClip | None = None,
        measure_every: int = 1,
    ) -> None:
        self.backend = backend
        self.micro_batch_size = micro_batch_size
        self.clip = clip
        self.measure_every = measure_every
        self.model = backend.place(model)
        self.params = dict(self.model.named_parameters())
        assert_tied(self.model)
        self.groups = assign(groups, [TensorInfo(n, tuple(p.shape)) for n, p in self.params.items()])
        self.slots = {
            (group.name, slot): [torch.zeros_like(self.params[t.name]) for t in group.tensors]
            for group in self.groups
            for slot in group.rule.slots
        }
        on_cpu = backend.device.type == "cpu"
        self.observer = QKObserver(self.model, qk_clip, bound_first=on_cpu) if qk_clip else None
        self.step = 0
        self._records: list[UpdateRecord] = []

    def update(self, step: int, window: Window, lr_factor: float) -> None:
        """One update from the mean gradient over the window's rows."""
        loss = self._accumulate(window)
        norm = get_total_norm([_gradient(p) for p in self.params.values()])
        gated = not (math.isfinite(loss) and math.isfinite(norm.item()) and self._logits_finite())
        scalars = {group.name: group.rule.step_scalars(step, lr_factor) for group in self.groups}
        clip_coef, update_rms = 1.0, {}
        if not gated:
            clip_coef = self._clip(norm)
            update_rms = self._apply(scalars, step % self.measure_every == 0)
        lr = {name: values["lr"] for name, values in scalars.items()}
        qk = self._rescale(gated)
        self._records.append(UpdateRecord(step, loss, norm.item(), clip_coef, lr, gated, update_rms, qk))
        self.model.zero_grad(set_to_none=True)
        self.step = step

    def drain(self) -> list[UpdateRecord]:
        """Records since the last drain."""
        records, self._records = self._records, []
        return records

    @torch.no_grad()
    def evaluate(self, windows: Iterable[Window]) -> EvalRecord:
        """Per-token losses are fp32 (fp64 under fp64), their sums float64."""
        loss_sum, wrong, tokens, batches, sum_of_means = 0.0, 0, 0, 0, 0.0
        self.model.eval()
        for inputs_BT, targets_BT in self._micro_batches(windows):
            with self.backend.autocast():
                logits_BTV, mean_loss = self.model(inputs_BT, targets_BT)
            logits_NV, targets_N = _at_least_fp32(logits_BTV.flatten(0, 1)), targets_BT.flatten()
            losses_N = F.cross_entropy(logits_NV, targets_N, reduction="none")
            loss_sum += losses_N.double().sum().item()
            wrong += int((logits_NV.argmax(dim=-1) != targets_N).sum())
            tokens += targets_N.numel()
            batches += 1
            sum_of_means += mean_loss.item()
        self.model.train()
        return EvalRecord(loss_sum, wrong, tokens, sum_of_means / batches)

    @torch.no_grad()
    def logits(self, tokens_T: Array) -> Array:
        """Next-token logits_V in float64."""
        with self.backend.autocast():
            logits_BTV, _ = self.model(self.backend.shard(np.asarray(tokens_T, dtype=np.int64)[None, :]))
        return np.asarray(logits_BTV[0, -1].double().cpu().numpy())

    def gradients(self, window: Window) -> dict[str, Array]:
        """Mean gradient over the window's rows, by upstream's names, before clipping; no trace of it stays."""
        self._accumulate(window)
        found = {name: _copy(_gradient(p)) for name, p in self.params.items()}
        self.model.zero_grad(set_to_none=True)
        if self.observer is not None:
            self.observer.reset()
        return found

    def compiles(self) -> int:
        """Graphs compiled so far: none, operations run as they come."""
        return 0

    def weights(self) -> dict[str, Array]:
        """Copies, in the model's parameter order."""
        return {name: _copy(p) for name, p in self.params.items()}

    def state(self) -> EngineState:
        """Copies of weights and slots."""
        slots = {name: _copy(tensor) for name, tensor in self._named_slots()}
        return EngineState(self.step, self.weights(), slots)

    def load(self, state: EngineState) -> None:
        """Continue from `state`.

        Raises:
            ConfigError: naming every tensor that is missing, foreign, or of another shape or dtype.
        """
        slots = dict(self._named_slots())
        problems = mismatches("weight", state.weights, _signature(self.params))
        problems += mismatches("slot", state.slots, _signature(slots))
        if problems:
            raise ConfigError(problems)
        with torch.no_grad():
            for name, tensor in {**self.params, **slots}.items():
                tensor.copy_(torch.from_numpy({**state.weights, **state.slots}[name]))
        self.step = state.step
        self._records.clear()

    def executors(self) -> dict[str, Any]:
        """Engine, backend, micro-batch."""
        return {
            "engine": "torch",
            **self.backend.executors(),
            "micro_batch_size": self.micro_batch_size,
            "numpy": np.__version__,
        }

    def close(self) -> None:
        """Remove the hooks and end the backend's workers."""
        if self.observer is not None:
            self.observer.close()
        self.backend.close()

    def _accumulate(self, window: Window) -> float:
        batches = list(self._micro_batches([window]))
        total = torch.zeros((), device=self.backend.device)
        for inputs_BT, targets_BT in batches:
            with self.backend.autocast():
                _, loss = self.model(inputs_BT, targets_BT, return_logits=False)
                share = loss / len(batches)
            total = total + share.detach()
            share.backward()
        return float(total.item())

    def _clip(self, norm: torch.Tensor) -> float:
        """Scale the gradients in scope; `norm` is the norm over all of them."""
        if not self.clip.max_norm:
            return 1.0
        grads = [
            _gradient(self.params[tensor.name])
            for group in self.groups
            if group.name.startswith(self.clip.scope)
            for tensor in group.tensors
        ]
        scope_norm = get_total_norm(grads) if self.clip.scope else norm
        coef = torch.clamp(self.clip.max_norm / (scope_norm + CLIP_EPSILON), max=1.0)
        clip_coef = float(coef.item())
        if clip_coef != 1.0:
            torch._foreach_mul_(grads, coef)
        return clip_coef

    @torch.no_grad()
    def _apply(self, scalars: Mapping[str, Mapping[str, float]], measured: bool) -> dict[str, float]:
        """Update every group; where `measured`, the root mean square of what each moved beside its decay."""
        update_rms = {}
        for group in self.groups:
            params = [self.params[tensor.name] for tensor in group.tensors]
            grads = [_gradient(p) for p in params]
            slots = {slot: self.slots[group.name, slot] for slot in group.rule.slots}
            keep = scalars[group.name].get("keep", 1.0)
            before = [p * keep for p in params] if measured else []
            group.rule.update(self.backend.ops, params, grads, slots, scalars[group.name])
            if measured:
                update_rms[group.name] = root_mean_square(b.sub_(p) for b, p in zip(before, params, strict=True))
        return update_rms

    def _logits_finite(self) -> bool:
        return self.observer is None or self.observer.finite()

    def _rescale(self, gated: bool) -> QKRecord | None:
        """The QK clip's step after the rule; its observation starts anew whatever happened."""
        if self.observer is None:
            return None
        record = self.observer.record(0 if gated else self.observer.rescale())
        self.observer.reset()
        return record

    def _micro_batches(self, windows: Iterable[Window]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for window in windows:
            inputs_NT, targets_NT = (
                self.backend.shard(window.inputs_NT),
                self.backend.shard(window.targets_NT),
            )
            size = self.micro_batch_size
            yield from zip(torch.split(inputs_NT, size), torch.split(targets_NT, size), strict=True)

    def _named_slots(self) -> Iterator[tuple[str, torch.Tensor]]:
        for group in self.groups:
            for slot in group.rule.slots:
                for tensor, value in zip(group.tensors, self.slots[group.name, slot], strict=True):
                    yield f"{slot}/{tensor.name}", value


def root_mean_square(tensors: Iterable[torch.Tensor]) -> float:
    """Over all elements of all tensors, summed in float64, a cache-sized piece at a time."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for tensor in tensors:
        for piece in torch.split(tensor.flatten(), TILE_ELEMENTS):
            total = total + piece.double().square().sum()
        count += tensor.numel()
    return math.sqrt(total.item() / count)


def assert_tied(model: nn.Module) -> None:
    """The embedding and the output head must stay one tensor whatever moved the model."""
    assert model.get_parameter("transformer.wte.weight") is model.get_parameter("lm_head.weight"), "untied"


def _at_least_fp32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


def _gradient(p: torch.Tensor) -> torch.Tensor:
    assert p.grad is not None
    return p.grad


def _copy(tensor: torch.Tensor) -> Array:
    return np.array(tensor.detach().cpu().numpy(), copy=True)


def _signature(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[Any, Any]]:
    return {name: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()}
