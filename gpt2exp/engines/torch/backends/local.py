"""One device of this machine, decisions on the host. Today that device is the CPU."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from gpt2exp.config import Precision
from gpt2exp.optim.ops import HostOps

DTYPES = {Precision.fp32: torch.float32, Precision.fp64: torch.float64, Precision.bf16: torch.float32}


class LocalBackend:
    """Places the model and batches, and gates updates on the host before anything moves."""

    def __init__(self, precision: Precision, threads: int | None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.precision = precision
        self.device = torch.device("cpu")
        self.ops = HostOps()

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

    def executors(self) -> dict[str, Any]:
        """What on this machine decides the bits."""
        return {
            "device": self.device.type,
            "device_model": cpu_model(),
            "devices": 1,
            "ranks": 1,
            "threads": torch.get_num_threads(),
            "isa": torch.backends.cpu.get_cpu_capability(),
            "torch": str(torch.__version__),
        }


def cpu_model() -> str:
    """The processor's name, as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
