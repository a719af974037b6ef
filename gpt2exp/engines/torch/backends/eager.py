"""The device of `DeferredEngine` on a CPU without XLA: everything happens at once, nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from gpt2exp.config import Precision
from gpt2exp.engines.torch.backends.local import LocalBackend
from gpt2exp.optim.ops import DeviceOps

F = TypeVar("F", bound=Callable[..., None])


class EagerBackend(LocalBackend):
    """Implements `DeviceBackend`: the deferred engine's arithmetic, without XLA's."""

    devices = 1

    def __init__(self, precision: Precision, threads: int | None) -> None:
        super().__init__(precision, threads)
        self.ops = DeviceOps()

    def replicate(self, tensor: torch.Tensor) -> torch.Tensor:
        """There is one device."""
        return tensor

    def jit(self, function: F, name: str) -> F:
        """Nothing to compile."""
        return function

    def sync(self) -> None:
        """Nothing is pending."""

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies."""
        return [tensor.detach().clone() for tensor in tensors]

    def compiles(self) -> int:
        """None, ever."""
        return 0

    def hlo(self, tensors: Sequence[torch.Tensor]) -> str:
        """There is no graph."""
        return ""

    def executors(self) -> dict[str, Any]:
        """As the local backend, with its own name."""
        return {**super().executors(), "orthogonalizer": "ns", "commit": "deferred"}
