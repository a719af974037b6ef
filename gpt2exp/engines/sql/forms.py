"""Which optimizers have a SQL form, and what of their options has none. Read by validation: imports next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpt2exp.optim.newton_schulz import NSPrecision


def everything(recipe: Any) -> list[str]:
    """Kinds whose every option has a form."""
    return []


def muon_problems(recipe: Any) -> list[str]:
    """Options of the Muons without a form, one line each."""
    if recipe.ns_precision is NSPrecision.bf16:
        return ["optimizer.ns_precision=bf16: SQL iterates in DOUBLE; use fp32, there the weights' own precision"]
    return []


FORMS: dict[str, Callable[[Any], list[str]]] = {
    "adamw": everything,
    "muon": muon_problems,
    "muonclip": muon_problems,
    "sgd": everything,
}
"""Kinds with a form (the statements are in `optimizers.py`), and the problems of a recipe."""
