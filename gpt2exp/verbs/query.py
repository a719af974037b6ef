"""query SQL: ask a question of all runs at once, in SQL.

Usage: gpt2exp query "SELECT ..." [--runs FOLDER ...] [--csv]

DuckDB reads the files of every run at or below the folders (default: outputs) and answers one statement that reads.
Nothing is written, and no other file is read. The views, each with run, arm, seed and path:

  runs         one row a run: status, step, seconds, final_val_loss, final_token_error, and everything in run.json
               by its dotted name, in double quotes: "training.optimizer.lr"
  updates      one row an update: step, tokens, loss, grad_norm, clip_coef, "lr/<group>", gated, qk_max ...
  evaluations  one row an evaluation: step, tokens, val_loss, token_error, seconds of training until then
  tracking     one row a tracked step: token_error and its source
  spectra      one row a step and matrix: raw_alpha, clip_alpha ..., from spectra.csv (gpt2exp spectra RUN writes it)

--csv prints CSV with all digits. A damaged run is left out and named on stderr. Examples:

  gpt2exp query 'SELECT arm, count(*), avg(final_val_loss) FROM runs GROUP BY arm ORDER BY 3'
  gpt2exp query 'PIVOT evaluations ON arm USING avg(val_loss) GROUP BY step ORDER BY step' --runs outputs/six_run
  gpt2exp query 'DESCRIBE updates'
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gpt2exp.run_store.question import Answer, ask, shown
from gpt2exp.run_store.tables import open_store
from gpt2exp.verbs.status import PIPE_WIDTH
from gpt2exp.verbs_help import VerbParser


def main(arguments: list[str]) -> int:
    """Read the runs, ask, print."""
    options = _options(arguments)
    store = open_store(map(Path, options.runs or ["outputs"]))
    for complaint in store.complaints:
        print(f"gpt2exp: {complaint}", file=sys.stderr)
    answer = ask(store.connection, options.statement)
    print(answer.csv() if options.csv else aligned(answer), end="")
    return 0


def aligned(answer: Answer) -> str:
    """The answer as lines of text, never cut or wrapped; numbers to the right."""
    table = Table(box=None, pad_edge=False)
    for name, numeric in zip(answer.columns, answer.numeric, strict=True):
        table.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    for row in answer.rows:
        table.add_row(*map(shown, row))
    console = Console(highlight=False, markup=False, emoji=False, width=PIPE_WIDTH)
    with console.capture() as printed:
        console.print(table)
    return "".join(line.rstrip() + "\n" for line in printed.get().splitlines())


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = VerbParser(__doc__)
    parser.add_argument("statement", metavar="SQL")
    parser.add_argument("--runs", nargs="+", action="extend", metavar="FOLDER")
    parser.add_argument("--csv", action="store_true")
    return parser.parse(arguments)
