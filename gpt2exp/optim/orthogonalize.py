"""Which way a device orthogonalizes, and over how many workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from gpt2exp.optim.newton_schulz import (
    NSPrecision,
    Polynomial,
    by_eigenvalues,
    newton_schulz,
    small_side_factor,
)

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    import torch


class OrthogonalizerKind(Enum):
    """How the map is computed: execution, not science."""

    auto = "auto"
    """`eigh` on CPU for fp32 and fp64, `ns` for bf16 and on accelerators."""
    ns = "ns"
    """The plain Newton-Schulz iteration."""
    eigh = "eigh"
    """Eigenvalues of the smaller Gram matrix and the composed polynomial."""


@dataclass(frozen=True)
class OrthogonalMap:
    """Which map, and the arithmetic of the plain iteration: science."""

    polynomial: Polynomial
    steps: int
    precision: NSPrecision


def resolved(kind: OrthogonalizerKind, device: str, precision: NSPrecision) -> OrthogonalizerKind:
    """What `auto` means on a device for a precision."""
    if kind is not OrthogonalizerKind.auto:
        return kind
    if device == "cpu" and precision is NSPrecision.fp32:
        return OrthogonalizerKind.eigh
    return OrthogonalizerKind.ns


class Orthogonalizer:
    """Makes orthogonalized steps; on CPU one matrix is one task, computed by one thread.

    Many small operations gain little from threads inside each of them, and collapse when the machine is
    shared; whole matrices side by side do not. As each matrix is computed by one thread, the number of
    workers changes no bit.
    """

    def __init__(self, kind: OrthogonalizerKind, device: str, workers: int) -> None:
        self.kind = kind
        self.device = device
        self._pool = _workers(workers) if device == "cpu" else None

    def step(
        self,
        targets: Sequence[torch.Tensor],
        updates: Sequence[Callable[[], torch.Tensor]],
        keep: float,
        amounts: Sequence[float],
        which: OrthogonalMap,
    ) -> None:
        """W <- keep W - amount orthogonalized(U) for each target W, in place; U is what its update returns."""
        kind = resolved(self.kind, self.device, which.precision)
        if self._pool is None:
            step_batched(targets, [update() for update in updates], keep, amounts, which)
            return
        largest_first = sorted(range(len(targets)), key=lambda i: -targets[i].numel())
        tasks = [
            self._pool.submit(_step_one, targets[i], updates[i], keep, amounts[i], which, kind) for i in largest_first
        ]
        for task in tasks:
            task.result()

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.shutdown()


def orthogonalized(matrix_AB: torch.Tensor, which: OrthogonalMap, kind: OrthogonalizerKind) -> torch.Tensor:
    """The map of one matrix, never written into it; bf16 matrices are mapped in fp32 unless asked otherwise."""
    if which.precision is NSPrecision.bf16:
        matrix_AB = matrix_AB.bfloat16()
    elif matrix_AB.element_size() < 4:
        matrix_AB = matrix_AB.float()
    way = by_eigenvalues if kind is OrthogonalizerKind.eigh else newton_schulz
    return way(matrix_AB, which.polynomial, which.steps)


def _step_one(
    target_AB: torch.Tensor,
    update: Callable[[], torch.Tensor],
    keep: float,
    amount: float,
    which: OrthogonalMap,
    kind: OrthogonalizerKind,
) -> None:
    import torch

    with torch.no_grad():
        update_AB = update()
        if kind is OrthogonalizerKind.eigh and target_AB.dtype == update_AB.dtype and target_AB.element_size() >= 4:
            _step_by_factor(target_AB, update_AB, keep, amount, which)
            return
        result_AB = orthogonalized(update_AB, which, kind)
        if keep != 1.0:
            target_AB.mul_(keep)
        target_AB.add_(result_AB, alpha=-amount)


def _step_by_factor(
    target_AB: torch.Tensor, update_AB: torch.Tensor, keep: float, amount: float, which: OrthogonalMap
) -> None:
    """The last product adds straight into the weights: the orthogonalized matrix is never stored."""
    factor_NN = small_side_factor(update_AB, which.polynomial, which.steps)
    tall = update_AB.shape[0] > update_AB.shape[1]
    left, right = (update_AB, factor_NN) if tall else (factor_NN, update_AB)
    target_AB.addmm_(left, right, beta=keep, alpha=-amount)


def step_batched(
    targets: Sequence[torch.Tensor],
    updates: Sequence[torch.Tensor],
    keep: float | torch.Tensor,
    amounts: Sequence[float] | Sequence[torch.Tensor],
    which: OrthogonalMap,
) -> None:
    """Matrices of one shape stacked: accelerators like few large operations."""
    import torch

    by_shape: dict[tuple[int, ...], list[int]] = {}
    for index, update in enumerate(updates):
        by_shape.setdefault(tuple(update.shape), []).append(index)
    for indices in by_shape.values():
        stacked = torch.stack([updates[index] for index in indices])
        results = orthogonalized(stacked, which, OrthogonalizerKind.ns)
        for index, result_AB in zip(indices, results, strict=True):
            targets[index].mul_(keep).sub_(result_AB * amounts[index])


def _workers(count: int) -> ThreadPoolExecutor:
    # Imported here because every `gpt2exp --cfg job` imports this module for the enum above.
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(count, initializer=_one_thread)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
