"""sql bench: time, memory, plans and error of a training step in SQL.

Usage: gpt2exp sql bench [--hosts duckdb,datafusion] [--sizes BxTxL,...] [--steps N] [--reps N] [--csv F] [optimizer=X]

Trains nanogpt_mini (or more rows B, tokens T, layers L of it) for a few steps, each on another batch, every host and
size in a process of its own. A line a host and size: medians over the steps that replay captured plans, the same
with the statements rewritten every step and how many times slower that is, operators and largest rows of the
gradient's plans, the memory it took beside the libraries', the loss, and the largest relative error of any
weight, moment or loss against torch in float64. --csv writes a row a step, and a figure of the growth with batch,
context and layers beside it (PNG and SVG). What fails is a line that says why, and the rest goes on. Takes minutes.

Exit status: 0; 5 an error is above 1e-12; 3 the sql extra is missing, or a size is too large.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gpt2exp.engines.sql.hosts import check_libraries
from gpt2exp.engines.sql.limits import check_size
from gpt2exp.errors import ConfigError, NumericalError
from gpt2exp.spectral import plots
from gpt2exp.sql_reports.bench import SIZES, Row, Size, figure, measure, summary
from gpt2exp.sql_reports.bench_child import Specification
from gpt2exp.sql_reports.options import add_common, aligned, positive, write_csv
from gpt2exp.verbs_help import VerbParser

TOLERANCE = 1e-12
"""Of every default size: with one row AdamW's tiny gradients cost 2e-13; nanogpt_mini at 4 rows is within 1e-14."""
STEPS = 5
REPS = 3
OPTIMIZER = ("optimizer=nanogpt_adamw",)


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write.

    Raises:
        ConfigError: options or the optimizer's overrides do not fit.
        RefusedError: the sql extra is missing, or a size is too large.
    """
    options = parse(arguments)
    check_libraries()
    specifications = [
        Specification(
            host, tuple(options.optimizer or OPTIMIZER), **size._asdict(), steps=options.steps, reps=options.reps
        )
        for size in options.sizes
        for host in options.hosts
    ]
    for spec in specifications:
        check_size(spec.config(f"hardware={spec.host}"), spec.batch)
    rows, summaries = [], []
    for found in measure(specifications):
        rows += found
        summaries.append(summary(found))
        print(f"{len(summaries)} of {len(specifications)} measured", flush=True)
    print(aligned(summaries), end="")
    if options.csv:
        write_csv(options.csv, rows)
        for path in plots.save({options.csv.stem: figure(summaries)}, options.csv.parent):
            print(f"wrote {path}")
    check(summaries)
    return 0


def check(summaries: Sequence[Row]) -> None:
    """See that what was timed was right.

    Raises:
        NumericalError: an error is above the tolerance, or NaN.
    """
    for row in summaries:
        error = row["largest_relative_error"]
        if error is not None and not error <= TOLERANCE:
            size = Size(row["batch"], row["context"], row["layers"])
            raise NumericalError(
                f"{row['host']}, {size}: largest relative error {error:.2g}, expected at most {TOLERANCE:g}"
            )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options.

    Raises:
        ConfigError: they do not fit.
    """
    parser = VerbParser(__doc__)
    add_common(parser, REPS)
    parser.add_argument("--sizes", type=sizes, default=SIZES)
    parser.add_argument("--steps", type=positive, default=STEPS)
    parser.add_argument("optimizer", nargs="*")
    options = parser.parse(arguments)
    foreign = [text for text in options.optimizer if not text.startswith(("optimizer=", "optimizer."))]
    if foreign:
        raise ConfigError(f"sql bench {foreign[0]}: only the optimizer can be chosen, optimizer=NAME or optimizer.KEY=")
    return options


def sizes(text: str) -> tuple[Size, ...]:
    """`4x16x1,8x16x1`: rows of a batch x context x layers."""
    return tuple(map(one_size, text.split(",")))


def one_size(text: str) -> Size:
    """Three whole numbers."""
    parts = text.split("x")
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"'{text}' is no size; expected BxTxL, as in 4x16x1")
    return Size(*map(positive, parts))
