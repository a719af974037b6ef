"""Operations whose best form depends on the backend; rules are written against these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from gpt2exp.optim.orthogonalize import Orthogonalizer, OrthogonalMap

TILE_ELEMENTS = 1 << 18
"""Elements of a tile for each thread: its pieces of four fp32 operands and a temporary stay in L2 and L3."""


class Ops(Protocol):
    """What an update rule may ask of its backend."""

    def tiles(self, *operands: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, ...]]:
        """Matching pieces of each operand list, for rules that work element by element."""

    def subtract_ratio(self, p: torch.Tensor, numerator: torch.Tensor, denominator: torch.Tensor, scale: Any) -> None:
        """p <- p - scale * numerator / denominator, in place; `denominator` may be overwritten."""

    def subtract_scaled(self, p: torch.Tensor, u: torch.Tensor, scale: Any) -> None:
        """p <- p - scale * u, in place."""

    def orthogonal_step(
        self,
        targets: Sequence[torch.Tensor],
        updates: Sequence[Callable[[], torch.Tensor]],
        keep: Any,
        amounts: Sequence[Any],
        which: OrthogonalMap,
    ) -> None:
        """W <- keep W - amount orthogonalized(U) for each target W, in place; U is what its update returns.

        Updates are called once each, where their matrix is worked on.
        """


class HostOps:
    """For devices that take scalars as Python floats (CPU, CUDA, MPS)."""

    def __init__(self, orthogonalizer: Orthogonalizer | None = None, tile_elements: int = TILE_ELEMENTS) -> None:
        self.orthogonalizer = orthogonalizer
        self.tile_elements = tile_elements

    def tiles(self, *operands: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, ...]]:
        """Cache-sized flat views of contiguous CPU tensors, whole tensors otherwise.

        The arithmetic is element by element, so cutting changes no bit; it saves the trips to memory
        that separate passes over a large tensor would make.
        """
        import torch

        elements = self.tile_elements * torch.get_num_threads()
        for tensors in zip(*operands, strict=True):
            if tensors[0].device.type == "cpu" and all(tensor.is_contiguous() for tensor in tensors):
                yield from zip(*(tensor.view(-1).split(elements) for tensor in tensors), strict=True)
            else:
                yield tensors

    def subtract_ratio(self, p: torch.Tensor, numerator: torch.Tensor, denominator: torch.Tensor, scale: float) -> None:
        """p <- p - scale * numerator / denominator."""
        p.addcdiv_(numerator, denominator, value=-scale)

    def subtract_scaled(self, p: torch.Tensor, u: torch.Tensor, scale: float) -> None:
        """p <- p - scale * u."""
        p.add_(u, alpha=-scale)

    def orthogonal_step(
        self,
        targets: Sequence[torch.Tensor],
        updates: Sequence[Callable[[], torch.Tensor]],
        keep: float,
        amounts: Sequence[float],
        which: OrthogonalMap,
    ) -> None:
        """By the backend's orthogonalizer."""
        assert self.orthogonalizer is not None, "this backend was built without an orthogonalizer"
        self.orthogonalizer.step(targets, updates, keep, amounts, which)


class DeviceOps:
    """For devices whose scalars are tensors: everything stays on the device, whole tensors at a time."""

    def tiles(self, *operands: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, ...]]:
        """Whole tensors: a compiler fuses passes by itself."""
        yield from zip(*operands, strict=True)

    def subtract_ratio(
        self, p: torch.Tensor, numerator: torch.Tensor, denominator: torch.Tensor, scale: torch.Tensor
    ) -> None:
        """p <- p - scale * numerator / denominator."""
        p.sub_(numerator / denominator * scale)

    def subtract_scaled(self, p: torch.Tensor, u: torch.Tensor, scale: torch.Tensor) -> None:
        """p <- p - scale * u."""
        p.sub_(u * scale)

    def orthogonal_step(
        self,
        targets: Sequence[torch.Tensor],
        updates: Sequence[Callable[[], torch.Tensor]],
        keep: torch.Tensor,
        amounts: Sequence[torch.Tensor],
        which: OrthogonalMap,
    ) -> None:
        """The plain Newton-Schulz iteration, matrices of one shape at once."""
        from gpt2exp.optim.orthogonalize import step_batched

        step_batched(targets, [update() for update in updates], keep, amounts, which)
