"""What is tracked beside the loss: the token error, and snapshots of the weights for their spectra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpt2exp.config import Config
from gpt2exp.derived import Derived, derive
from gpt2exp.engines.base import Engine
from gpt2exp.rundir import RunDirectory
from gpt2exp.spectral.slices import Slice
from gpt2exp.spectral.snapshots import Header, SnapshotConflictError
from gpt2exp.spectral.supervisor import Supervisor
from gpt2exp.train.evaluate import Validation
from gpt2exp.train.interrupt import StopRequest
from gpt2exp.train.progress import Progress


@dataclass
class Tracking:
    """One attempt's tracking; `done` are the steps that have their row in `tracking.jsonl`."""

    cfg: Config
    probe: Validation | None
    slices: tuple[Slice, ...]
    supervisor: Supervisor
    run: RunDirectory
    progress: Progress
    stop: StopRequest
    done: set[int]

    @cached_property
    def derived(self) -> Derived:
        """What follows from the configuration."""
        return derive(self.cfg)

    def due(self, step: int) -> bool:
        """On the grid and not in the rows."""
        return step in self.derived.token_error_steps and step not in self.done

    def ready(self, step: int) -> bool:
        """Whether a snapshot of `step` may be queued; waits while too many are pending, and says so.

        False means that a stop was asked for while waiting.
        """
        if not self.takes_spectra(step):
            return True
        room = self.cfg.tracking.max_pending - 1
        pending = len(self.supervisor.queue.pending())
        if pending > room:
            self.progress.say(f"step {step}: {pending} snapshots wait for their spectra; training waits for the worker")
            self.run.event("tracking_wait", step=step, pending=pending)
        return self.supervisor.wait(room, lambda: self.stop.reason is not None)

    def takes_spectra(self, step: int) -> bool:
        """Whether the weights of `step` are kept for their spectra."""
        return step in self.derived.spectra_steps

    def track(self, step: int, engine: Engine, evaluation: Mapping[str, Any] | None) -> None:
        """Take the token error and the snapshot of `step`; the row is written last.

        Args:
            step: the engine's step.
            engine: only read.
            evaluation: the row of an evaluation of these very weights, if there is one.
        """
        tokens = step * self.cfg.schedule.tokens_per_step
        row = {"step": step, "tokens": tokens, **self.token_error(engine, evaluation), "snapshot_sha256": None}
        if self.takes_spectra(step):
            row["snapshot_sha256"] = self.snapshot(step, engine)
        self.run.append("tracking", [row])
        self.done.add(step)
        if row["source"] == "probe":
            self.progress.tracked(row)

    def token_error(self, engine: Engine, evaluation: Mapping[str, Any] | None) -> dict[str, Any]:
        """From the evaluation's own logits where there is one, else from the probe."""
        if evaluation is not None:
            columns = {name: evaluation[name] for name in ("token_error", "target_tokens")}
            return {**columns, "source": "evaluation"}
        if self.probe is None:
            return {"token_error": None, "target_tokens": 0, "source": "none"}
        record = engine.evaluate(self.probe.windows())
        return {"token_error": record.token_error, "target_tokens": record.target_tokens, "source": "probe"}

    def snapshot(self, step: int, engine: Engine) -> str:
        """Queue the weights of `step`; the SHA256 of the snapshot."""
        tracking = self.cfg.tracking
        header = Header(
            step=step,
            tokens=step * self.cfg.schedule.tokens_per_step,
            seed=self.cfg.seed,
            backend=tracking.backend.name,
            randomize=tracking.randomize,
            keep_weights=tracking.keep_weights,
            slices=self.slices,
        )
        weights, queue = engine.weights(), self.supervisor.queue
        try:
            sha256 = queue.publish(header, weights)
        except SnapshotConflictError:
            self.supervisor.stop()
            queue.set_aside(step, self.run.written_by(self.run.attempt - 1) / "spectra")
            self.run.event("snapshot_replaced", step=step)
            sha256 = queue.publish(header, weights)
        self.supervisor.ensure()
        return sha256
