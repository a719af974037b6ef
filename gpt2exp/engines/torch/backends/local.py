"""One device of this machine, decisions on the host. Today that device is the CPU."""

from __future__ import annotations

import ctypes
import platform
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from gpt2exp.config import Precision
from gpt2exp.optim.newton_schulz import NSPrecision
from gpt2exp.optim.ops import HostOps, Ops
from gpt2exp.optim.orthogonalize import Orthogonalizer, OrthogonalizerKind, resolved

DTYPES = {Precision.fp32: torch.float32, Precision.fp64: torch.float64, Precision.bf16: torch.float32}
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt(3)."""


class LocalBackend:
    """Places the model and batches, and gates updates on the host before anything moves."""

    def __init__(
        self,
        precision: Precision,
        threads: int | None,
        orthogonalizer: OrthogonalizerKind = OrthogonalizerKind.auto,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        keep_freed_memory()
        self.precision = precision
        self.device = torch.device("cpu")
        self.orthogonalizer = Orthogonalizer(orthogonalizer, self.device.type, torch.get_num_threads())
        self.ops: Ops = HostOps(self.orthogonalizer)

    def place(self, model: nn.Module) -> nn.Module:
        """Move the model to the device in the parameter dtype of the precision."""
        return model.to(device=self.device, dtype=DTYPES[self.precision])

    def shard(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """A batch on the device; it shares memory with `array` on CPU."""
        return torch.from_numpy(array).to(self.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Context of forward passes: bf16 activations where the precision says so."""
        if self.precision is Precision.bf16:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def close(self) -> None:
        """End the workers."""
        self.orthogonalizer.close()

    def executors(self) -> dict[str, Any]:
        """What on this machine decides the bits."""
        return {
            "device": self.device.type,
            "device_model": cpu_model(),
            "devices": 1,
            "ranks": 1,
            "threads": torch.get_num_threads(),
            "orthogonalizer": resolved(self.orthogonalizer.kind, self.device.type, NSPrecision.fp32).name,
            "isa": torch.backends.cpu.get_cpu_capability(),
            "torch": str(torch.__version__),
        }


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next step instead of giving it back to the system.

    Every step frees and allocates all gradients and activations. By default the large ones are fresh mappings
    each time, whose pages the kernel must clear first: a tenth of a step of GPT-2 at 256 tokens. No
    arithmetic changes, and the peak is the same, but the process stays at it. Does nothing without glibc.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)


def cpu_model() -> str:
    """The processor's name, as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
