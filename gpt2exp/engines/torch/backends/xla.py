"""XLA devices through torch_xla: one process, rows split over all chips (SPMD), everything else on each of them.

Facts behind it were measured with torch 2.9.1 and torch_xla 2.9.0 on virtual CPU devices; docs/xla.md tells them.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from gpt2exp.config import Precision
from gpt2exp.errors import RefusedError
from gpt2exp.optim.ops import DeviceOps

F = TypeVar("F", bound=Callable[..., None])

DOWNCASTS = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16")
"""Announced as removed, and still turning fp32 into bf16 in torch_xla 2.9."""
MATMUL_PRECISION = "highest"
"""fp32 products in fp32: a TPU's default would round their operands to bf16. Meaningless for bf16 operands."""
EXTRA = "an environment of its own with torch==2.9.1 and torch_xla==2.9.0 (pip install 'gpt2exp[xla]')"
QUIET = "2"
"""XLA's log level: errors. Below it, every graph announces the end of GSPMD."""
PJRT = {"xla_cpu": "CPU", "tpu": "TPU"}


class XlaBackend:
    """Implements `DeviceBackend`."""

    def __init__(self, kind: str, devices: int, precision: Precision) -> None:
        self.kind = kind
        self.precision = precision
        self.mesh = _start(kind, devices)
        self.devices = devices
        self.device = _xla().device()
        self.ops = DeviceOps()

    def place(self, model: nn.Module) -> nn.Module:
        """Move the model by swapping tensors in place: `.to` alone would make two tensors of a tied one."""
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return model.to(device=self.device, dtype=torch.float32)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    def shard(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """Rows split over the chips; asserted, because a batch that is not split would go unnoticed."""
        tensor = torch.from_numpy(array).to(self.device)
        if len(tensor) % self.devices:
            return self.replicate(tensor)
        self._mark(tensor, ("data",) + (None,) * (tensor.dim() - 1))
        assert self.devices == 1 or sharding(tensor).startswith("{devices="), "a batch that is not sharded"
        return tensor

    def replicate(self, tensor: torch.Tensor) -> torch.Tensor:
        """Mark explicitly: what a step returns has an explicit mark, and another mark is another graph."""
        self._mark(tensor, (None,) * tensor.dim())
        return tensor

    def autocast(self) -> AbstractContextManager[Any]:
        """bf16 products under precision bf16; parameters, gradients and state are fp32."""
        if self.precision is Precision.bf16:
            return torch.autocast("xla", dtype=torch.bfloat16)
        return nullcontext()

    def jit(self, function: F, name: str) -> F:
        """One graph a call; a read of the device inside it raises."""
        compiled: F = _xla().compile(function, full_graph=True, name=name)
        return compiled

    def sync(self) -> None:
        """Run what is pending and wait."""
        _xla().sync(wait=True)

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """All at once: a tenth of the time of one after the other."""
        bulk = getattr(_xla()._XLAC, "_xla_get_cpu_tensors", None)
        if bulk is None:
            return [tensor.detach().cpu() for tensor in tensors]
        return list(bulk([tensor.detach() for tensor in tensors]))

    def compiles(self) -> int:
        """Graphs that were not in the cache."""
        import torch_xla.debug.metrics as metrics

        return int(metrics.counter_value("UncachedCompile") or 0)

    def hlo(self, tensors: Sequence[torch.Tensor]) -> str:
        """As it will be lowered, before any of it has run."""
        return str(_xla()._XLAC._get_xla_tensors_hlo([tensor.detach() for tensor in tensors]))

    def transfers(self) -> int:
        """Reads of the device so far."""
        import torch_xla.debug.metrics as metrics

        found = metrics.metric_data("TransferFromDeviceTime")
        return int(found[0]) if found else 0

    def executors(self) -> dict[str, Any]:
        """Device, count, versions and the precision of products."""
        return {
            "device": self.kind,
            "device_model": device_model(self.kind),
            "devices": self.devices,
            "ranks": 1,
            "threads": torch.get_num_threads(),
            "orthogonalizer": "ns",
            "matmul_precision": MATMUL_PRECISION,
            "torch": str(torch.__version__),
            "torch_xla": str(_xla().__version__),
        }

    def close(self) -> None:
        """The devices stay with the process."""

    def _mark(self, tensor: torch.Tensor, axes: tuple[str | None, ...]) -> None:
        import torch_xla.distributed.spmd as spmd

        spmd.mark_sharding(tensor, self.mesh, axes)


def check_environment(kind: str, devices: int) -> None:
    """Everything that can be refused before torch_xla is imported; sets what it reads at import.

    Raises:
        RefusedError: not installed, a variable that would change the arithmetic, several hosts, or a process that
            already runs another XLA device.
    """
    if importlib.util.find_spec("torch_xla") is None:
        raise RefusedError(f"hardware.kind={kind}: torch_xla is not installed; it needs {EXTRA}")
    for name in DOWNCASTS:
        if os.environ.get(name, "0") not in ("", "0"):
            raise RefusedError(f"{name}={os.environ[name]}: would turn fp32 into bf16 unseen; unset it")
    hosts = [name for name in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
    if kind == "tpu" and len(hosts) > 1:
        raise RefusedError(f"TPU slice of {len(hosts)} hosts: only one host is supported; use a v5litepod-8 or smaller")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", QUIET)
    wanted = {"PJRT_DEVICE": PJRT[kind]}
    if kind == "xla_cpu":
        wanted["CPU_NUM_DEVICES"] = str(devices)
    for name, value in wanted.items():
        if os.environ.setdefault(name, value) != value:
            raise RefusedError(
                f"{name}={os.environ[name]}: hardware.kind={kind} with hardware.devices={devices} needs "
                f"{name}={value}; unset it, or use a new process"
            )


def sharding(tensor: torch.Tensor) -> str:
    """How a tensor is laid out over the devices, as XLA writes it."""
    return str(_xla()._XLAC._get_xla_sharding_spec(tensor))


def device_model(kind: str) -> str:
    """The processor behind virtual devices, else what libtpu calls its chips."""
    from gpt2exp.engines.torch.backends.local import cpu_model

    if kind == "xla_cpu":
        return cpu_model()
    import torch_xla.runtime as runtime

    return str(runtime.global_runtime_device_attributes()[0].get("device_kind", "TPU"))


def _start(kind: str, devices: int) -> Any:
    """SPMD and the precision of products, both before anything is compiled; the mesh of all devices."""
    check_environment(kind, devices)
    logging.getLogger("torch_xla.backends").setLevel(logging.ERROR)
    import torch_xla.backends as backends
    import torch_xla.distributed.spmd as spmd
    import torch_xla.runtime as runtime

    if not runtime.is_spmd():
        runtime.use_spmd()
    found = runtime.global_runtime_device_count()
    if found != devices:
        raise RefusedError(f"hardware.devices={devices}: found {found}; set hardware.devices={found}, or a new process")
    if backends.get_mat_mul_precision() != MATMUL_PRECISION:
        backends.set_mat_mul_precision(MATMUL_PRECISION)
    return spmd.Mesh(np.arange(devices), (devices,), ("data",))


def _xla() -> Any:
    import torch_xla

    return torch_xla
