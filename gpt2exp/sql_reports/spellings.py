"""Attention as tables, spelled twice, and a kernel average that is not attention.

Tables `q` (b, h, i, d), `k` and `v` (b, h, j, d): row of the batch, head, position of a query or a key, and dimension
inside a head; the value is in column `x`. A sum that ends in `+ 0e0` has the same value; without it the gradient
library takes attention's sums for plain matrix products and drops the equality of batch and head from their
gradients: a table of (batch x heads x positions)^2 rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from gpt2exp.engines.sql.statement import Statement, double, statement

Spelling = Callable[[int], tuple[Statement, ...]]
"""Statements up to `output` (b, h, i, d), given the width of a head."""

KEYS: Mapping[str, tuple[str, ...]] = {
    "q": ("b", "h", "i", "d"),
    "k": ("b", "h", "j", "d"),
    "v": ("b", "h", "j", "d"),
}
LOSS = statement("loss", "half the squared norm of the output", "SELECT 0.5e0 * SUM(x * x) AS x FROM output")


def with_windows(width: int) -> tuple[Statement, ...]:
    """Softmax over the rows of a query by window functions."""
    return (
        scores(width),
        statement(
            "exponentials",
            "exp(score - largest score of the query)",
            "SELECT b, h, i, j, exp(x - MAX(x) OVER (PARTITION BY b, h, i)) AS x FROM scores",
        ),
        statement(
            "weights",
            "each over their sum",
            "SELECT b, h, i, j, x / SUM(x) OVER (PARTITION BY b, h, i) AS x FROM exponentials",
        ),
        output(),
    )


def with_groups(width: int) -> tuple[Statement, ...]:
    """Softmax over the rows of a query by GROUP BY and joins."""
    return (
        scores(width),
        statement("largest", "largest score of each query", "SELECT b, h, i, MAX(x) AS x FROM scores GROUP BY b, h, i"),
        statement(
            "exponentials",
            "exp(score - largest score of the query)",
            """
            SELECT s.b, s.h, s.i, s.j, exp(s.x - m.x) AS x
            FROM scores s
            JOIN largest m ON m.b = s.b AND m.h = s.h AND m.i = s.i
            """,
        ),
        *normalised(),
        output(),
    )


def kernel_average(width: int) -> tuple[Statement, ...]:
    """Nadaraya-Watson: values averaged by a Gaussian kernel of the distance, over all positions.

    No dot product, no largest score, no mask. The kernel is exp(-|q_i - k_j|^2 / (2 sqrt(width))).
    """
    return (
        statement(
            "distances",
            "squared distance of each query and each key",
            """
            SELECT q.b, q.h, q.i, k.j, SUM((q.x - k.x) * (q.x - k.x)) AS x
            FROM q
            JOIN k ON k.b = q.b AND k.h = q.h AND k.d = q.d
            GROUP BY q.b, q.h, q.i, k.j
            """,
        ),
        statement(
            "exponentials",
            "Gaussian kernel",
            f"SELECT b, h, i, j, exp({double(-0.5 / math.sqrt(width))} * x) AS x FROM distances",
        ),
        *normalised(),
        output(),
    )


SPELLINGS: Mapping[str, Spelling] = {
    "window functions": with_windows,
    "GROUP BY": with_groups,
    "Nadaraya-Watson": kernel_average,
}
CONTROL = "Nadaraya-Watson"


def scores(width: int) -> Statement:
    """q_i . k_j / sqrt(width) for j <= i: masked pairs are absent rows."""
    return statement(
        "scores",
        "query . key / sqrt(width), of each position and those before it",
        f"""
        SELECT q.b, q.h, q.i, k.j, SUM(q.x * k.x + 0e0) * {double(1.0 / math.sqrt(width))} AS x
        FROM q
        JOIN k ON k.b = q.b AND k.h = q.h AND k.d = q.d
        WHERE k.j <= q.i
        GROUP BY q.b, q.h, q.i, k.j
        """,
    )


def normalised() -> tuple[Statement, ...]:
    """`exponentials` over their sum."""
    return (
        statement("totals", "their sum", "SELECT b, h, i, SUM(x) AS x FROM exponentials GROUP BY b, h, i"),
        statement(
            "weights",
            "each over their sum",
            """
            SELECT e.b, e.h, e.i, e.j, e.x / t.x AS x
            FROM exponentials e
            JOIN totals t ON t.b = e.b AND t.h = e.h AND t.i = e.i
            """,
        ),
    )


def output() -> Statement:
    """Values weighted by `weights`."""
    return statement(
        "output",
        "weighted values",
        """
        SELECT p.b, p.h, p.i, v.d, SUM(p.x * v.x + 0e0) AS x
        FROM weights p
        JOIN v ON v.b = p.b AND v.h = p.h AND v.j = p.j
        GROUP BY p.b, p.h, p.i, v.d
        """,
    )
