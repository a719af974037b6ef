"""Several endpoints judged together: one primary, the others after Holm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpt2exp.report.paired import ALPHA, pairs_for_exact


class Endpoint(Protocol):
    """What `judge` needs to know of an endpoint."""

    @property
    def endpoint(self) -> str:
        """Its name."""

    @property
    def n(self) -> int:
        """Pairs that the p-value rests on."""

    @property
    def p(self) -> float | None:
        """Two-sided p-value; None where the data define none."""

    @property
    def test(self) -> str:
        """The test it comes from."""

    @property
    def no_p(self) -> str:
        """Why there is none."""


@dataclass(frozen=True)
class Outcome:
    """One endpoint's verdict: `difference`, `not shown` or `not judged`, and the reason in words.

    `adjusted` is the p-value that was judged: p itself for the primary endpoint, Holm's for a secondary one.
    """

    endpoint: str
    primary: bool
    p: float | None
    adjusted: float | None
    verdict: str
    reason: str


@dataclass(frozen=True)
class Judgement:
    """The primary endpoint, unadjusted, and the secondary ones after Holm (1979)."""

    alpha: float
    minimum_pairs: int
    primary: Outcome
    secondary: tuple[Outcome, ...]


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's (1979) adjusted p-values; an undefined one stays so, and still counts among the tests."""
    adjusted: list[float | None] = [None] * len(p_values)
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p))
        adjusted[index] = largest
    return adjusted


def judge(
    primary: Endpoint, secondary: Sequence[Endpoint] = (), *, alpha: float = ALPHA, minimum_pairs: int | None = None
) -> Judgement:
    """Verdicts over several endpoints: the primary one unadjusted, the others after Holm.

    Below `minimum_pairs` nothing is called a difference; by default the fewest with which an exact test, which
    assumes no distribution, can reach `alpha` at all.
    """
    least = pairs_for_exact(alpha) if minimum_pairs is None else minimum_pairs
    adjusted = holm([endpoint.p for endpoint in secondary])
    return Judgement(
        alpha,
        least,
        _outcome(primary, True, primary.p, alpha, least),
        tuple(_outcome(e, False, p, alpha, least) for e, p in zip(secondary, adjusted, strict=True)),
    )


def _outcome(endpoint: Endpoint, primary: bool, adjusted: float | None, alpha: float, least: int) -> Outcome:
    if adjusted is None:
        verdict, reason = "not judged", endpoint.no_p
    elif endpoint.n < least:
        verdict = "not judged"
        reason = f"n={endpoint.n} pairs, and this plan calls nothing a difference below {least}"
    else:
        verdict = "difference" if adjusted <= alpha else "not shown"
        adjective = "" if primary else "Holm-adjusted "
        reason = f"{adjective}p = {adjusted:.3g} {'<=' if adjusted <= alpha else '>'} {alpha:g} ({endpoint.test})"
    return Outcome(endpoint.endpoint, primary, endpoint.p, adjusted, verdict, reason)
