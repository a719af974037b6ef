"""How a value looks in a table: the same everywhere, and what is missing never looks like a number."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from gpt2exp.report.censoring import Bounds
from gpt2exp.report.sentences import number, rough

MISSING = "-"
NOT_FINITE = "not finite"
DIGEST = re.compile(r"[0-9a-f]{40,64}")
NUMERIC = re.compile(r"[-+]?\d[\d,.:]*(e[-+]?\d+)?( / \d[\d,]*)?")
COUNTED_UNITS = ("step", "steps", "token", "tokens", "s", "seconds")
"""Units of whole or large numbers; four decimals would say nothing of them."""

AXES = {"step": "steps", "tokens": "tokens", "seconds": "seconds"}
"""What each axis counts."""

UNITS = {**AXES, "seconds": "s"}


def fixed(value: float | None, *, signed: bool = False) -> str:
    """Four decimals; what they would round to zero is written in scientific notation, so only zero looks like zero."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return NOT_FINITE
    form = ".4f" if value == 0 or abs(value) >= 5e-5 else ".2e"
    return format(value, f"{'+' if signed else ''}{form}")


def amount(value: float | None, unit: str = "", *, signed: bool = False) -> str:
    """A value of an endpoint with this unit: losses and fractions with four decimals, steps and seconds as counts."""
    if value is None or not math.isfinite(value) or unit not in COUNTED_UNITS:
        return fixed(value, signed=signed)
    return f"{'+' if signed and value > 0 else ''}{number(value)}"


def spread(value: float | None) -> str:
    """An SD or an effect to be detected: three significant digits, because it is not known better."""
    return fixed(value) if value is None or not math.isfinite(value) else rough(value)


def duration(seconds: float | None) -> str:
    """h:mm:ss, with tenths below a minute."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 59.95:
        return f"0:00:{seconds:04.1f}"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def along(axis: str, value: float) -> str:
    """A place on the step, tokens or seconds axis, without its unit."""
    return f"{value:,.1f}" if axis == "seconds" or value % 1 else f"{value:,.0f}"


def at(axis: str, value: float | None) -> str:
    """A place on an axis, with its unit."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{along(axis, value)} {UNITS[axis]}"


def bounds(axis: str, found: Bounds | None) -> str:
    """What is known of a number on an axis: `500 to 750 steps`, or where it may lie beyond the horizon."""
    if found is None:
        return MISSING
    if found.high is None:
        return f"after {at(axis, found.low)}, perhaps not by the horizon"
    if found.low == found.high:
        return at(axis, found.low)
    return f"{along(axis, found.low)} to {at(axis, found.high)}"


def short(digest: str | None) -> str:
    """The first 12 digits of a digest: enough to compare by eye; CSVs hold all of it."""
    return digest[:12] if digest else MISSING


def setting(value: Any) -> str:
    """A value of a record as its configuration writes it; a digest is cut."""
    if value is None or value in ("", [], {}):
        return MISSING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value))
    text = str(value)
    return short(text) if DIGEST.fullmatch(text) else text


def listed(values: Sequence[Any]) -> str:
    """Values after each other, or that there are none."""
    return ", ".join(map(str, values)) or MISSING


def is_number(cell: str) -> bool:
    """Whether a cell belongs in a column of figures."""
    return NUMERIC.fullmatch(cell) is not None


def words(name: str) -> str:
    """A key as people read it."""
    return name.replace("_", " ")
