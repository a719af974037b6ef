"""The PyTorch engine for devices that must not be waited for: every decision of a step is made on the device.

A step is one graph a micro-batch and one for the update. The host sends one vector of scalars and the tokens, and
reads a ring of results every `measure_every` updates. A non-finite update is computed like any other and then not
committed: each new value is chosen by `where` against the old one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from gpt2exp.data.windows import Window
from gpt2exp.engines.base import Array, EngineState, EvalRecord, QKRecord, UpdateRecord
from gpt2exp.engines.torch.backends.base import DeviceBackend
from gpt2exp.engines.torch.deferred_qk import DeferredQKObserver
from gpt2exp.engines.torch.engine import CLIP_EPSILON, TorchEngine
from gpt2exp.engines.torch.hlo import product_precisions
from gpt2exp.models.inventory import WPE
from gpt2exp.optim.base import Clip, GroupRule
from gpt2exp.optim.qk_clip import QKClip

Scalars = Mapping[str, Mapping[str, Any]]
FIXED = ("loss", "grad_norm", "clip_coef", "ok", "clipped_heads")
"""Columns of the ring; after them the groups' update_rms, then the layers' largest logits."""


class DeferredEngine(TorchEngine):
    """Implements `gpt2exp.engines.base.Engine` without a read of the device between two drains."""

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[GroupRule],
        backend: DeviceBackend,
        *,
        micro_batch_size: int,
        clip: Clip,
        qk_clip: QKClip | None = None,
        measure_every: int = 1,
    ) -> None:
        super().__init__(
            model, groups, backend, micro_batch_size=micro_batch_size, clip=clip, measure_every=measure_every
        )
        self.on_device = backend
        self.qk = DeferredQKObserver(self.model, qk_clip, backend.replicate) if qk_clip else None
        self.names = [(group.name, key) for group in self.groups for key in group.rule.step_scalars(1, 1.0)]
        layers = len(self.qk.maxima) if self.qk else 0
        dtype = next(iter(self.params.values())).dtype
        self.packed = self._new(len(self.names), dtype=dtype)
        self.loss = self._new(dtype=dtype)
        self.ring = self._new(measure_every, len(FIXED) + len(self.groups) + layers, dtype=dtype)
        self.written = self._new(dtype=torch.int64)
        self.rows = backend.replicate(torch.arange(measure_every, device=backend.device))
        self.sums = self._new(3, dtype=torch.float64)
        self._settle()
        self._pending: list[tuple[int, dict[str, float]]] = []
        self._first_row = 0
        self._micro = backend.jit(self._accumulate_on_device, "micro")
        self._finish = backend.jit(self._commit, "update")
        self._score = backend.jit(self._evaluate_on_device, "evaluate")

    def update(self, step: int, window: Window, lr_factor: float) -> None:
        """One update, asked for and not waited for."""
        if len(self._pending) == self.measure_every:
            self._collect()
        scalars = {group.name: group.rule.step_scalars(step, lr_factor) for group in self.groups}
        self._upload(scalars)
        batches = list(self._micro_batches([window]))
        for inputs_BT, targets_BT in batches:
            self._micro(inputs_BT, targets_BT, len(batches))
        self._finish()
        self._pending.append((step, {name: values["lr"] for name, values in scalars.items()}))
        self.step = step

    def drain(self) -> list[UpdateRecord]:
        """Records since the last drain: one read of the device."""
        self._collect()
        return super().drain()

    @torch.no_grad()
    def evaluate(self, windows: Iterable[Window]) -> EvalRecord:
        """Summed on the device in float64; one read at the end."""
        self.model.eval()
        self.sums.zero_()
        tokens = batches = 0
        for inputs_BT, targets_BT in self._micro_batches(windows):
            self._score(inputs_BT, targets_BT)
            tokens += targets_BT.numel()
            batches += 1
        self.model.train()
        loss_sum, wrong, means = self.on_device.fetch([self.sums])[0].tolist()
        return EvalRecord(loss_sum, round(wrong), tokens, means / batches)

    @torch.no_grad()
    def logits(self, tokens_T: Array) -> Array:
        """Next-token logits_V in float64; always of one full context, so that one graph serves every length."""
        context = self.params[WPE].shape[0]
        padded = np.zeros((1, context), dtype=np.int64)
        padded[0, : len(tokens_T)] = tokens_T
        inputs_BT = torch.from_numpy(padded).to(self.backend.device)
        last = torch.tensor([len(tokens_T) - 1]).to(self.backend.device)
        with self.backend.autocast():
            logits_BTV, _ = self.model(inputs_BT, torch.zeros_like(inputs_BT))
        (found,) = self.on_device.fetch([logits_BTV[0].index_select(0, last)])
        return np.asarray(found[0].double().numpy())

    def gradients(self, window: Window) -> dict[str, Array]:
        """Mean gradient over the window's rows, by upstream's names; nothing is kept of it."""
        batches = list(self._micro_batches([window]))
        for inputs_BT, targets_BT in batches:
            self._micro(inputs_BT, targets_BT, len(batches))
        grads = [p.grad for p in self.params.values() if p.grad is not None]
        found = self.on_device.fetch(grads)
        self._forget()
        self.on_device.sync()
        return {name: _numpy(tensor) for name, tensor in zip(self.params, found, strict=True)}

    def products(self, window: Window) -> Counter[tuple[str, str]]:
        """How many products of each (type, precision) the graphs of a step hold, read from their own text.

        Both graphs are made outside `jit`, on the first micro-batch; the update is one that is not committed.
        """
        inputs_BT, targets_BT = next(self._micro_batches([window]))
        self._accumulate_on_device(inputs_BT, targets_BT, 1)
        found = product_precisions(self.on_device.hlo([self.loss, *self._grads(self.params)]))
        self.on_device.sync()
        with torch.no_grad():
            self.loss.fill_(math.nan)
        self._commit()
        found += product_precisions(self.on_device.hlo(list(self.params.values())))
        with torch.no_grad():
            self.written.fill_(self._first_row + len(self._pending))
        self.on_device.sync()
        return found

    def compiles(self) -> int:
        """Graphs compiled so far in this process."""
        return self.on_device.compiles()

    def weights(self) -> dict[str, Array]:
        """Copies, in the model's parameter order."""
        found = self.on_device.fetch(list(self.params.values()))
        return {name: _numpy(tensor) for name, tensor in zip(self.params, found, strict=True)}

    def state(self) -> EngineState:
        """Copies of weights and slots."""
        slots = dict(self._named_slots())
        found = self.on_device.fetch(list(slots.values()))
        return EngineState(self.step, self.weights(), dict(zip(slots, map(_numpy, found), strict=True)))

    def load(self, state: EngineState) -> None:
        """Continue from `state`, as `TorchEngine` does."""
        self._collect()
        super().load(state)
        self._forget()
        self._settle()

    def close(self) -> None:
        """Remove the hooks."""
        if self.qk is not None:
            self.qk.close()
        super().close()

    def _micro_batches(self, windows: Iterable[Window]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each micro-batch holds `micro_batch_size` rows for every part of the device."""
        size = self.micro_batch_size * self.on_device.devices
        for window in windows:
            for start in range(0, len(window.inputs_NT), size):
                rows = slice(start, start + size)
                yield self.backend.shard(window.inputs_NT[rows]), self.backend.shard(window.targets_NT[rows])

    def _accumulate_on_device(self, inputs_BT: torch.Tensor, targets_BT: torch.Tensor, count: int) -> None:
        with self.backend.autocast():
            _, loss = self.model(inputs_BT, targets_BT, return_logits=False)
            share = loss / count
        self.loss.add_(share.detach())
        share.backward()

    @torch.no_grad()
    def _evaluate_on_device(self, inputs_BT: torch.Tensor, targets_BT: torch.Tensor) -> None:
        with self.backend.autocast():
            logits_BTV, mean_loss = self.model(inputs_BT, targets_BT)
        logits_NV, targets_N = logits_BTV.flatten(0, 1), targets_BT.flatten()
        logits_NV = logits_NV.float() if logits_NV.dtype is torch.bfloat16 else logits_NV
        losses_N = F.cross_entropy(logits_NV, targets_N, reduction="none")
        wrong = (logits_NV.argmax(dim=-1) != targets_N).sum()
        self.sums.add_(torch.stack([losses_N.double().sum(), wrong.double(), mean_loss.double()]))

    @torch.no_grad()
    def _commit(self) -> None:
        """The update of the gradients accumulated so far, its row in the ring, and a clean slate."""
        norm = _norm(self._grads(self.params))
        ok = norm.isfinite() & self.loss.isfinite()
        if self.qk is not None:
            ok = ok & self.qk.finite()
        coef = self._clip_on_device(norm)
        rms = self._apply_where(ok)
        clipped = self.qk.rescale(ok) if self.qk is not None else torch.zeros_like(self.loss)
        columns = [self.loss, norm, coef, ok, clipped, *rms]
        row = torch.stack([column.to(self.ring.dtype) for column in columns])
        if self.qk is not None:
            row = torch.cat([row, self.qk.largest().to(row.dtype)])
        here = (self.rows == self.written % self.measure_every)[:, None]
        self.ring.copy_(torch.where(here, row[None, :], self.ring))
        self.written.add_(1)
        self._forget()

    def _apply_where(self, ok: torch.Tensor) -> list[torch.Tensor]:
        """Update every group, and take back what is not `ok`; the root mean square of what each group moved."""
        scalars, moved = self._scalars(), []
        for group in self.groups:
            params = [self.params[tensor.name] for tensor in group.tensors]
            slots = {slot: self.slots[group.name, slot] for slot in group.rule.slots}
            living = [*params, *(tensor for slot in slots.values() for tensor in slot)]
            before = [tensor.clone() for tensor in living]
            group.rule.update(
                self.backend.ops, params, self._grads(t.name for t in group.tensors), slots, scalars[group.name]
            )
            keep = scalars[group.name].get("keep", 1.0)
            moved.append(_root_mean_square([b * keep - p for b, p in zip(before, params, strict=False)]))
            for tensor, old in zip(living, before, strict=True):
                tensor.copy_(torch.where(ok, tensor, old))
        return moved

    def _clip_on_device(self, norm: torch.Tensor) -> torch.Tensor:
        """Scale the gradients in scope; the factor, 1 where nothing is clipped."""
        if not self.clip.max_norm:
            return torch.ones_like(norm)
        scoped = [group for group in self.groups if group.name.startswith(self.clip.scope)]
        grads = self._grads(tensor.name for group in scoped for tensor in group.tensors)
        scope_norm = _norm(grads) if self.clip.scope else norm
        coef = torch.clamp(self.clip.max_norm / (scope_norm + CLIP_EPSILON), max=1.0)
        for grad in grads:
            grad.mul_(coef)
        return coef

    def _scalars(self) -> dict[str, dict[str, torch.Tensor]]:
        found: dict[str, dict[str, torch.Tensor]] = {}
        for index, (group, key) in enumerate(self.names):
            found.setdefault(group, {})[key] = self.packed[index]
        return found

    def _upload(self, scalars: Scalars) -> None:
        """All scalars of a step in one vector: alone, a 0, a 1 or two equal ones would be another graph."""
        values = [scalars[group][key] for group, key in self.names]
        self.packed.copy_(torch.tensor(values, dtype=self.packed.dtype))

    def _collect(self) -> None:
        """Read the ring into records."""
        if not self._pending:
            return
        rows = self.on_device.fetch([self.ring])[0].double().tolist()
        for offset, (step, lr) in enumerate(self._pending):
            row = rows[(self._first_row + offset) % self.measure_every]
            self._records.append(self._record(step, lr, row))
        self._first_row = (self._first_row + len(self._pending)) % self.measure_every
        self._pending.clear()

    def _record(self, step: int, lr: dict[str, float], row: Sequence[float]) -> UpdateRecord:
        loss, norm, coef, ok, clipped = row[: len(FIXED)]
        groups = len(FIXED) + len(self.groups)
        gated, measured = not ok, step % self.measure_every == 0
        rms = {group.name: row[len(FIXED) + index] for index, group in enumerate(self.groups)}
        maxima = tuple(row[groups:])
        qk = QKRecord(maxima, ("exact",) * len(maxima), round(clipped)) if self.qk is not None else None
        return UpdateRecord(
            step, loss, norm, 1.0 if gated else coef, lr, gated, rms if measured and not gated else {}, qk
        )

    def _grads(self, names: Iterable[str]) -> list[torch.Tensor]:
        found = [self.params[name].grad for name in names]
        assert all(grad is not None for grad in found), "gradients are made once and zeroed in place"
        return [grad for grad in found if grad is not None]

    def _forget(self) -> None:
        """Zero what an update gathered, in place: a new tensor would be another graph."""
        with torch.no_grad():
            for grad in self._grads(self.params):
                grad.zero_()
            self.loss.zero_()
        if self.qk is not None:
            self.qk.reset()

    def _new(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.on_device.replicate(torch.zeros(shape, dtype=dtype, device=self.on_device.device))

    def _settle(self) -> None:
        """Everything that lives from step to step exists, is replicated and computed before the first step."""
        for p in self.params.values():
            self.on_device.replicate(p)
            if p.grad is None:
                p.grad = self.on_device.replicate(torch.zeros_like(p))
        for tensors in self.slots.values():
            for tensor in tensors:
                self.on_device.replicate(tensor)
        self.on_device.sync()


def _norm(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in tensors]))
    return norm


def _root_mean_square(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    squares = torch.stack([tensor.square().sum() for tensor in tensors])
    return torch.sqrt(squares.sum() / sum(tensor.numel() for tensor in tensors))


def _numpy(tensor: torch.Tensor) -> Array:
    return np.array(tensor.numpy(), copy=True)
