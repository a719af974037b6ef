"""What the PyTorch engines ask of a device: one small class a backend.

`TorchEngine` decides on the host and needs `Backend`. `DeferredEngine` never waits for the device within a step and
needs `DeviceBackend` as well. A backend for another lazy or compiled device (TorchTPU) would fill in these methods and
nothing else; docs/xla.md lists what each must guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from gpt2exp.optim.ops import Ops

F = TypeVar("F", bound=Callable[..., None])


class Backend(Protocol):
    """A place where a model lives and batches go."""

    @property
    def device(self) -> torch.device:
        """Where tensors are."""

    @property
    def ops(self) -> Ops:
        """How update rules compute there."""

    def place(self, model: nn.Module) -> nn.Module:
        """The model on the device in the parameter dtype, tied weights still one tensor."""

    def shard(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """Rows of a batch on the device, split over its parts where it has several."""

    def autocast(self) -> AbstractContextManager[Any]:
        """Context of forward passes."""

    def executors(self) -> dict[str, Any]:
        """What decides the bits there: compared when pairing, pooling and resuming."""

    def close(self) -> None:
        """Release workers."""


class DeviceBackend(Backend, Protocol):
    """A device that must not be waited for within a step."""

    @property
    def devices(self) -> int:
        """Parts that rows are split over: a micro-batch has that many times its rows."""

    def replicate(self, tensor: torch.Tensor) -> torch.Tensor:
        """Declare that every part of the device holds all of a tensor that lives from step to step."""

    def jit(self, function: F, name: str) -> F:
        """Run `function` as one graph; a read of the device inside it is an error."""

    def sync(self) -> None:
        """Finish everything asked for so far."""

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies on the host, in one transfer where the device can."""

    def compiles(self) -> int:
        """Graphs compiled so far in this process."""

    def hlo(self, tensors: Sequence[torch.Tensor]) -> str:
        """Text of the graph that would compute what is pending; empty where nothing is compiled."""
