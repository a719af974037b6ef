"""Ranges that recipe values must keep, worded once."""

from __future__ import annotations


def check_scale(key: str, value: float) -> list[str]:
    """A step size or threshold: zero is allowed and means none."""
    return [] if value >= 0 else [f"optimizer.{key}={value:g}: must not be negative"]


def check_positive(key: str, value: float) -> list[str]:
    """A number that something is divided by."""
    return [] if value > 0 else [f"optimizer.{key}={value:g}: must be greater than 0"]


def check_beta(key: str, value: float) -> list[str]:
    """A decay rate of a running average."""
    return [] if 0 <= value < 1 else [f"optimizer.{key}={value:g}: must lie in [0, 1)"]


def check_decay(key: str, value: float, lr: float) -> list[str]:
    """Decoupled decay multiplies weights by 1 - lr*decay, which must stay positive."""
    if value < 0:
        return [f"optimizer.{key}={value:g}: must not be negative"]
    if lr * value >= 1:
        return [f"optimizer.{key}={value:g}: lr*{key} is {lr * value:g}, and must stay below 1"]
    return []
