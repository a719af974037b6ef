"""The nearest real name for a misspelt one."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def nearest(name: str, candidates: Sequence[str]) -> str | None:
    """The candidate most like `name`; a dotted key also matches by its last part."""
    close = get_close_matches(name, candidates, n=1, cutoff=0.6)
    if close:
        return close[0]
    by_leaf = {candidate.rpartition(".")[2]: candidate for candidate in reversed(candidates)}
    close = get_close_matches(name.rpartition(".")[2], list(by_leaf), n=1, cutoff=0.7)
    return by_leaf[close[0]] if close else None


def did_you_mean(name: str, candidates: Sequence[str], prefix: str = "") -> str:
    """`; did you mean X?` or an empty string."""
    found = nearest(name, candidates)
    return f"; did you mean {prefix}{found}?" if found else ""
