"""sql attention: causal softmax attention and its gradients in SQL, in two spellings, against torch in float64.

Usage: gpt2exp sql attention [--hosts duckdb,datafusion] [--sizes BxHxTxD,...] [--reps N] [--csv FILE]

For each size (batch, heads, positions, width of a head) and each host: attention spelled with window functions and
with GROUP BY (masked pairs are absent rows), and a control that is not attention, the Nadaraya-Watson average with a
Gaussian kernel. The pass `forward` computes the output, `gradient` the gradients of half its squared norm with
respect to Q, K and V in one backward pass, replayed from captured plans. milliseconds is the median of the
repetitions on one thread, largest relative error the largest difference from torch as a share of the largest value,
largest rows the most rows that an operator put out, operators those of all plans of the pass. What a host cannot
plan has a row that says skip and why, and the rest goes on.

Exit status: 0 all within 1e-14; 5 not; 3 the sql extra is missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gpt2exp.errors import NumericalError
from gpt2exp.sql_reports.attention import MAX_ROWS, TOLERANCE, Size, measure
from gpt2exp.sql_reports.options import add_common, aligned, positive, write_csv
from gpt2exp.verbs_help import VerbParser

SIZES = (Size(1, 4, 16, 4), Size(4, 4, 16, 4), Size(16, 4, 16, 4), Size(4, 4, 32, 4), Size(4, 4, 16, 16))
"""The head of nanogpt_mini, then more of one dimension each."""
REPS = 5


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write.

    Raises:
        NumericalError: something is out of tolerance.
        RefusedError: the sql extra is missing.
    """
    options = parse(arguments)
    rows = list(measure(options.hosts, options.sizes, options.reps))
    columns = [row.columns() for row in rows]
    print(aligned(columns), end="")
    if options.csv:
        write_csv(options.csv, columns)
    failed = [row for row in rows if row.failed]
    if failed:
        worst = failed[0]
        raise NumericalError(
            f"{len(failed)} of {len(rows)} rows are out of tolerance; {worst.host}, {worst.spelling}, {worst.run}, "
            f"{worst.size}: found {worst.largest_relative_error:.2g}, expected at most {TOLERANCE:g}"
        )
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options.

    Raises:
        ConfigError: they do not fit.
    """
    parser = VerbParser(__doc__)
    add_common(parser, REPS)
    parser.add_argument("--sizes", type=sizes, default=SIZES)
    return parser.parse(arguments)


def sizes(text: str) -> tuple[Size, ...]:
    """`1x4x16x4,4x4x16x4`: batch x heads x positions x width."""
    return tuple(map(one_size, text.split(",")))


def one_size(text: str) -> Size:
    """Four whole numbers whose join fits."""
    parts = text.split("x")
    if len(parts) != 4:
        raise argparse.ArgumentTypeError(f"'{text}' is no size; expected BxHxTxD, as in 4x4x16x4")
    size = Size(*map(positive, parts))
    if size.joined_rows > MAX_ROWS:
        raise argparse.ArgumentTypeError(
            f"{text}: queries and keys join to {size.joined_rows:,} rows; expected at most {MAX_ROWS:,}"
        )
    return size
