"""spectra RUN [RUN ...]: finish, tabulate and plot the layer spectra of runs.

Usage: gpt2exp spectra RUN [RUN ...] [--plot] [--matrix L00_W_Q] [--step N] [--refit]

RUN is a run directory or a folder of them. What is pending is fitted first (a run that was `measuring` becomes
complete), unless the run is under way. spectra.csv, spectra_summary.csv and spectra_correlations.csv are
rewritten. `--plot` draws figures (PNG and SVG) into RUN/figures, with the spectrum of one matrix at one step.
`--refit` fits the stored eigenvalues again with the fast backend, into RUN/spectra_refit/, beside the others.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gpt2exp import rundir
from gpt2exp.errors import ConfigError, StoppedError
from gpt2exp.experiment import measure
from gpt2exp.rundir import RunDirectory, Status
from gpt2exp.spectral import completion, refit
from gpt2exp.spectral.snapshots import Queue
from gpt2exp.spectral.supervisor import supervised
from gpt2exp.spectral.tables import summary_rows
from gpt2exp.train.interrupt import stop_on_signals
from gpt2exp.verbs.status import PIPE_WIDTH, held
from gpt2exp.verbs_help import VerbParser

COLUMNS = ("step", "token error", "fits", "failed", "raw alpha", "clipped alpha", "median D")


def main(arguments: list[str]) -> int:
    """Finish, tabulate, plot; the highest exit status of all runs."""
    options = _options(arguments)
    runs = [run for name in options.runs for run in _runs(name)]
    return max(_one(run, options) for run in runs)


def _one(run: Path, options: argparse.Namespace) -> int:
    """One run; what stops it is said, and the others go on."""
    try:
        finish(run)
        status = 0
    except StoppedError as error:
        print(f"gpt2exp: {run}: {error}", file=sys.stderr)
        status = error.exit_code
    show(run)
    for path in completion.write_tables(run):
        print(f"wrote {path}")
    if options.refit:
        print(f"wrote {refit.refit(run)}")
    if options.plot:
        for path in plot(run, options.matrix, options.step):
            print(f"wrote {path}")
    return status


def finish(run: Path) -> None:
    """Fit what is pending, and complete a run that only lacked that.

    Raises:
        StoppedError: interrupted, or a snapshot cannot be fitted.
    """
    queue = Queue(rundir.spectra_folder(run))
    measuring = rundir.read_record(run)["status"] == Status.measuring.name
    if not (measuring or queue.pending()):
        return
    if held(run):
        print(f"{run}: under way; showing what is done")
        return
    directory = RunDirectory.reopen(run)
    try:
        with stop_on_signals() as stop, supervised(queue, print) as supervisor:
            if measuring:
                measure(directory, supervisor, lambda: stop.reason)
            else:
                completion.finish(run, supervisor, lambda: stop.reason)
    finally:
        directory.close()


def show(run: Path) -> None:
    """A line, and a table with one row a step."""
    results, tracking = completion.results_of(run), rundir.read_rows(run, "tracking")
    print(f"{run}: {completion.headline(run)}")
    rows: dict[int, dict[str, dict[str, Any]]] = {}
    for row in summary_rows(completion.facts_of(run), results, tracking):
        rows.setdefault(row["step"], {})[row["metric"]] = row
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for step, metrics in rows.items():
        clip = metrics["clip_alpha"]
        medians = [metrics[name]["median"] for name in ("raw_alpha", "clip_alpha", "clip_D")]
        cells = [str(step), _text(clip["token_error"]), str(clip["n"]), str(clip["n_excluded"]), *map(_text, medians)]
        table.add_row(*cells)
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    with console.capture() as printed:
        console.print(table)
    print("\n".join(line.rstrip() for line in printed.get().splitlines()))


def plot(run: Path, matrix: str | None, step: int | None) -> list[Path]:
    """Draw the figures of a run into its `figures` folder."""
    from gpt2exp.spectral import plots

    results = completion.results_of(run)
    if not results:
        raise ConfigError(f"{run}: no spectra to plot (tracking=off?)")
    shown = step if step is not None else results[-1]["step"]
    stored = Queue(rundir.spectra_folder(run))
    values = stored.eigenvalues(shown) if shown in stored.done() else {}
    eigenvalues = {(shown, name): array for name, array in values.items()}
    return plots.save(plots.figures(completion.facts_of(run), results, eigenvalues, matrix, step), run / "figures")


def _runs(name: str) -> list[Path]:
    runs = rundir.find_runs(Path(name)) if Path(name).is_dir() else []
    if not runs:
        raise ConfigError(f"{name}: no run directory at or below it")
    return runs


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = VerbParser(__doc__)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--refit", action="store_true")
    parser.add_argument("--matrix")
    parser.add_argument("--step", type=int)
    return parser.parse(arguments)
