"""Finds the optimizers: every module of this folder that defines `OPTIMIZER` is one."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

import gpt2exp.optim
from gpt2exp.optim.base import Optimizer


@cache
def optimizers() -> dict[str, Optimizer]:
    """All optimizers by kind."""
    found = {}
    for module_info in pkgutil.iter_modules(gpt2exp.optim.__path__):
        module = importlib.import_module(f"gpt2exp.optim.{module_info.name}")
        optimizer = getattr(module, "OPTIMIZER", None)
        if optimizer is not None:
            assert optimizer.kind not in found, f"two optimizers of kind {optimizer.kind}"
            found[optimizer.kind] = optimizer
    return found
