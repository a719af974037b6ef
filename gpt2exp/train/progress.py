"""What a person sees of a run: a live line on a terminal, plain lines elsewhere and in train.log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

SMOOTHING = 0.9
"""Weight of the past in the printed loss; the rows hold the unsmoothed one."""


class PatientConsole(Console):
    """A reader that goes away (`gpt2exp | head`) ends the printing, not the training; train.log goes on."""

    def on_broken_pipe(self) -> None:
        """Print to nowhere from here on."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Progress:
    """Prints a run; every permanent line goes to train.log too."""

    def __init__(self, num_steps: int, tokens_per_step: int, log_file: Path | None) -> None:
        self.num_steps = num_steps
        self.tokens_per_step = tokens_per_step
        self.console = PatientConsole(file=sys.stdout, highlight=False, soft_wrap=True)
        self.live = self.console.is_terminal
        self._log: IO[str] | None = log_file.open("a", encoding="utf-8") if log_file else None
        self._smoothed: float | None = None
        self.first_step = 0
        self._started = time.perf_counter()
        self._bar = Bar(TextColumn("{task.description}"), BarColumn(bar_width=24), console=self.console, transient=True)
        self._task: TaskID | None = None

    def start(self) -> None:
        """Begin timing; on a terminal, show the bar."""
        self._started = time.perf_counter()
        if self.live:
            self._task = self._bar.add_task("starting", total=self.num_steps, completed=self.first_step)
            self._bar.start()

    def close_bar(self) -> None:
        """Remove the bar; lines may still follow."""
        if self._task is not None:
            self._bar.stop()
            self._task = None

    def close(self) -> None:
        """Remove the bar and close the log."""
        self.close_bar()
        if self._log:
            self._log.close()
            self._log = None

    def say(self, text: str) -> None:
        """A permanent line."""
        self.console.print(text, markup=False)
        if self._log:
            self._log.write(text + "\n")
            self._log.flush()

    def updates(self, rows: Sequence[dict[str, Any]], timings: Sequence[dict[str, Any]]) -> None:
        """Rows just read back."""
        for row in rows:
            self._smooth(row["loss"])
            if row["gated"]:
                self.say(f"step {row['step']}: gated: loss or gradient is not finite; nothing was moved")
        if rows:
            line = self._line(rows[-1], timings)
            if self._task is not None:
                self._bar.update(self._task, completed=rows[-1]["step"], description=line)
                self._write_log(line)
            else:
                self.say(line)

    def evaluation(self, row: dict[str, Any]) -> None:
        """An evaluation just made."""
        loss = "not finite" if row["val_loss"] is None else f"{row['val_loss']:.4f}"
        where = f"step {row['step']:>{len(str(self.num_steps))}}/{self.num_steps}"
        self.say(f"{where}  val loss {loss}  token error {row['token_error']:.4f}")

    def tracked(self, row: dict[str, Any]) -> None:
        """A token error taken from the probe."""
        where = f"step {row['step']:>{len(str(self.num_steps))}}/{self.num_steps}"
        self.say(f"{where}  token error {row['token_error']:.4f} (probe of {row['target_tokens']:,} tokens)")

    def _smooth(self, loss: float | None) -> None:
        if loss is None:
            return
        past = loss if self._smoothed is None else self._smoothed
        self._smoothed = SMOOTHING * past + (1 - SMOOTHING) * loss

    def _line(self, row: dict[str, Any], timings: Sequence[dict[str, Any]]) -> str:
        step, width = row["step"], len(str(self.num_steps))
        seconds = sum(t["data"] + t["update"] for t in timings) / max(len(timings), 1)
        elapsed = (time.perf_counter() - self._started) / max(step - self.first_step, 1)
        rate = max(value for key, value in row.items() if key.startswith("lr/"))
        loss = "     -" if self._smoothed is None else f"{self._smoothed:.4f}"
        speed = f"{1000 * seconds:.0f} ms  {self.tokens_per_step / max(seconds, 1e-9):,.0f} tok/s"
        return (
            f"step {step:>{width}}/{self.num_steps} {100 * step // self.num_steps:>3}%  loss {loss}  "
            f"lr {rate:.2e}  {speed}  ETA {clock(elapsed * (self.num_steps - step))}"
        )

    def _write_log(self, line: str) -> None:
        if self._log:
            self._log.write(line + "\n")


def clock(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
