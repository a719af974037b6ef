"""When things happen in a run; how they happen is the engine's business. Every engine trains here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

from gpt2exp.config import Config, Warmup
from gpt2exp.data.windows import TrainingWindows
from gpt2exp.derived import Derived, derive
from gpt2exp.engines.base import Engine, QKRecord, UpdateRecord
from gpt2exp.errors import NumericalError, StoppedError
from gpt2exp.rundir import RunDirectory
from gpt2exp.schedule import lr_factor
from gpt2exp.train import checkpoint
from gpt2exp.train.evaluate import Validation, evaluate, finite
from gpt2exp.train.interrupt import StopRequest
from gpt2exp.train.progress import Progress
from gpt2exp.train.tracking import Tracking


@dataclass
class Loop:
    """One attempt at a run, from the engine's current step to the last."""

    cfg: Config
    engine: Engine
    windows: TrainingWindows
    validation: Validation | None
    run: RunDirectory
    progress: Progress
    stop: StopRequest
    step: int
    evaluations: dict[int, dict[str, Any]]
    tracking: Tracking | None = None
    gated_in_a_row: int = 0
    timings: list[dict[str, Any]] = field(default_factory=list)

    def train(self) -> None:
        """Train to the last step.

        Raises:
            StoppedError: paused or interrupted; a checkpoint was written.
            NumericalError: too many gated updates in a row.
        """
        self.measure()
        while self.step < self.cfg.schedule.num_steps:
            self.stop_if_asked()
            self.update()
            if self.read_back_due():
                self.read_back()
            self.measure()
            if self.checkpoint_due():
                self.save()

    def update(self) -> None:
        """One update; the data of step u and the learning rate follow from the integer alone."""
        started = time.perf_counter()
        window = self.windows.window(self.step)
        loaded = time.perf_counter()
        self.engine.update(self.step + 1, window, self.factor(self.step))
        self.step += 1
        self.timings.append(
            {
                "step": self.step,
                "attempt": self.run.attempt,
                "data": round(loaded - started, 6),
                "update": round(time.perf_counter() - loaded, 6),
            }
        )

    def factor(self, it: int) -> float:
        """The schedule's factor at update `it` (from 0)."""
        schedule = self.cfg.schedule
        return lr_factor(
            it,
            num_steps=schedule.num_steps,
            warmup_steps=self.derived.warmup_steps,
            nanogpt_form=schedule.warmup is Warmup.nanogpt,
            shape=schedule.decay.name,
            min_lr_ratio=schedule.min_lr_ratio,
        )

    @cached_property
    def derived(self) -> Derived:
        """What follows from the configuration."""
        return derive(self.cfg)

    def read_back_due(self) -> bool:
        """Rows are drained every log_every steps and before anything that needs them on disk."""
        every = self.cfg.logging.log_every
        return self.step % every == 0 or self.measurement_due() or self.checkpoint_due() or self.last

    @property
    def last(self) -> bool:
        """Whether the budget is spent."""
        return self.step == self.cfg.schedule.num_steps

    def read_back(self) -> None:
        """Drain the engine into `metrics.jsonl`, print, and count gated updates."""
        with self.timed("read_back"):
            records = self.engine.drain()
        rows = [self.metrics_row(record) for record in records]
        self.run.append("metrics", rows)
        self.run.append("timing", self.timings)
        self.progress.updates(rows, self.timings)
        self.timings = []
        for record in records:
            self.gated_in_a_row = self.gated_in_a_row + 1 if record.gated else 0
            if self.gated_in_a_row > self.cfg.gate.patience:
                raise NumericalError(self.gated_message(record))

    def gated_message(self, record: UpdateRecord) -> str:
        """Why a run that only gates is given up."""
        kept = checkpoint.steps(self.run.checkpoints)
        where = f"the last good checkpoint is step {kept[-1]}" if kept else "no checkpoint was written yet"
        return (
            f"{self.gated_in_a_row} updates in a row were gated (loss {record.loss}, gradient norm "
            f"{record.grad_norm} at step {record.step}; gate.patience={self.cfg.gate.patience}); {where}; "
            "a lower optimizer.lr or a longer warm-up is the usual cure"
        )

    def metrics_row(self, record: UpdateRecord) -> dict[str, Any]:
        """A row of `metrics.jsonl`: deterministic, so it may be compared bit for bit."""
        return {
            "step": record.step,
            "tokens": record.step * self.cfg.schedule.tokens_per_step,
            "loss": finite(record.loss),
            "grad_norm": finite(record.grad_norm),
            "clip_coef": record.clip_coef,
            **{f"lr/{group}": lr for group, lr in record.lr.items()},
            "gated": record.gated,
            **{f"optim/{group}/update_rms": value for group, value in record.update_rms.items()},
            **(qk_columns(record.qk) if record.qk else {}),
        }

    def measurement_due(self) -> bool:
        """Whether anything is to be measured now."""
        return self.evaluation_due() or self.tracking_due()

    def evaluation_due(self) -> bool:
        """On the grid and not in the rows."""
        return self.step in self.derived.evaluation_steps and self.step not in self.evaluations

    def tracking_due(self) -> bool:
        """On the grid and not in the rows."""
        return self.tracking is not None and self.tracking.due(self.step)

    def measure(self) -> None:
        """Evaluate and track, whatever is due."""
        if self.validation is not None and self.evaluation_due():
            self.evaluate(self.validation)
        if self.tracking is not None and self.tracking_due():
            self.track(self.tracking)

    def evaluate(self, validation: Validation) -> None:
        """Evaluate now."""
        with self.timed("evaluate"):
            row = evaluate(self.engine, validation, self.step, self.step * self.cfg.schedule.tokens_per_step)
        self.run.append("evaluations", [row])
        self.evaluations[self.step] = row
        self.progress.evaluation(row)

    def track(self, tracking: Tracking) -> None:
        """Track now, or as soon as the queue has room."""
        with self.timed("wait"):
            ready = tracking.ready(self.step)
        if not ready:
            self.stop_for(tracking.supervisor.trouble or self.stop.reason or "stopped")
        with self.timed("track"):
            tracking.track(self.step, self.engine, self.evaluations.get(self.step))

    def checkpoint_due(self) -> bool:
        """At multiples of checkpoint.every, at a pause, and at the last step."""
        every, keep = self.cfg.checkpoint.every, self.cfg.checkpoint.keep
        return keep > 0 and (self.last or (every is not None and self.step % every == 0))

    def save(self) -> None:
        """Write a checkpoint; rows are on disk before it exists."""
        if self.cfg.checkpoint.keep == 0:
            return
        if self.engine_has_rows():
            self.read_back()
        with self.timed("checkpoint"):
            offsets = self.run.sync_rows()
            path = checkpoint.save(self.run.checkpoints, self.engine.state(), offsets)
            checkpoint.prune(self.run.checkpoints, self.cfg.checkpoint.keep)
        self.run.event("checkpoint", step=self.step, path=path.name)

    def engine_has_rows(self) -> bool:
        """Whether updates since the last read-back are still in the engine."""
        return bool(self.timings)

    def stop_if_asked(self) -> None:
        """Pause at stop_after_steps, or stop cleanly after a signal."""
        paused = self.cfg.stop_after_steps is not None and self.step >= self.cfg.stop_after_steps
        reason = f"stop_after_steps={self.cfg.stop_after_steps}" if paused else self.stop.reason
        if reason is not None:
            self.stop_for(reason)

    def stop_for(self, reason: str) -> NoReturn:
        """Stop cleanly: a checkpoint of this step, then the error that ends the attempt."""
        if self.step not in checkpoint.steps(self.run.checkpoints):
            self.save()
        raise StoppedError(reason)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the seconds of a phase to the newest timing row."""
        started = time.perf_counter()
        yield
        seconds = round(time.perf_counter() - started, 6)
        if self.timings and phase == "read_back":
            self.timings[-1][phase] = seconds
        else:
            self.run.append("timing", [{"step": self.step, "attempt": self.run.attempt, phase: seconds}])


def qk_columns(qk: QKRecord) -> dict[str, Any]:
    """The QK clip's part of a row, layer by layer."""
    return {
        "qk_max": [finite(value) for value in qk.maxima],
        "qk_kind": list(qk.kinds),
        "qk_clipped": qk.clipped_heads,
    }
