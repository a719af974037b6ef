"""Optimizers: one file each, found by the registry; torch is imported only inside functions.

`gpt2exp.optim.MuonClip`, `Muon`, `AdamW` and `SGD` are `torch.optim.Optimizer`s for loops that are not ours.
"""

from __future__ import annotations

from typing import Any

FACADES = ("AdamW", "Muon", "MuonClip", "SGD")


def __getattr__(name: str) -> Any:
    """Import the facades, and with them torch, only when asked for."""
    if name not in FACADES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpt2exp.engines.torch import facade

    return getattr(facade, name)
