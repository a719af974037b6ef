"""Start an attempt: from step 0, or from the newest checkpoint that verifies, as if nothing had happened."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING

from gpt2exp.config import Config
from gpt2exp.errors import ConfigError
from gpt2exp.identity import Identity, differing
from gpt2exp.rundir import RunDirectory, read_rows
from gpt2exp.spectral.slices import slices
from gpt2exp.spectral.supervisor import Supervisor
from gpt2exp.train import checkpoint
from gpt2exp.train.interrupt import StopRequest
from gpt2exp.train.loop import Loop
from gpt2exp.train.progress import Progress
from gpt2exp.train.tracking import Tracking

if TYPE_CHECKING:
    from gpt2exp.assembly import Parts


def check_same_run(directory: RunDirectory, identity: Identity, allow_inexact: bool) -> None:
    """Refuse to continue a run as another one.

    Another training or measurement is another run, always refused. Another execution (threads, versions,
    micro-batch) changes bits: refused unless allowed, and then stamped on the run.

    Raises:
        ConfigError: naming the keys that differ.
    """
    record = directory.record
    problems = [
        f"{directory.path}: {tier}.{key} was {then}, is {now}: another run, give it another directory"
        for tier, value in (("training", identity.training), ("measurement", identity.measurement))
        for key, then, now in differing(record[tier], value)
    ]
    inexact = differing(record["execution"], identity.execution)
    if not allow_inexact:
        problems += [
            f"{directory.path}: execution.{key} was {then}, is {now}: bits would change; "
            "resume.allow_inexact=true continues and stamps the run inexact"
            for key, then, now in inexact
        ]
    if problems:
        raise ConfigError(problems)
    if inexact:
        record.setdefault("inexact", []).append({key: [then, now] for key, then, now in inexact})


@contextmanager
def progress(cfg: Config, directory: RunDirectory) -> Iterator[Progress]:
    """The attempt's printer, closed whatever happens."""
    printer = Progress(cfg.schedule.num_steps, cfg.schedule.tokens_per_step, directory.log_file)
    try:
        yield printer
    finally:
        printer.close()


def start(
    cfg: Config,
    parts: Parts,
    directory: RunDirectory,
    identity: Identity,
    printer: Progress,
    stop: StopRequest,
    supervisor: Supervisor,
) -> Loop:
    """Restore the newest good checkpoint (none: step 0), cut later rows away, begin the attempt."""
    step = restore(parts, directory, printer) if directory.attempt else 0
    directory.begin_attempt(
        {"from_step": step, "host": platform.node(), "pid": os.getpid(), "execution": identity.execution}
    )
    directory.event("start" if step == 0 else "resume", step=step)
    evaluations = {row["step"]: row for row in read_rows(directory.path, "evaluations")}
    gated = [row["gated"] for row in read_rows(directory.path, "metrics")]
    printer.first_step = step
    return Loop(
        cfg,
        parts.engine,
        parts.inputs.windows,
        parts.validation,
        directory,
        printer,
        stop,
        step,
        evaluations,
        tracking(cfg, parts, directory, printer, stop, supervisor),
        gated_in_a_row=len(list(takewhile(bool, reversed(gated)))),
    )


def tracking(
    cfg: Config,
    parts: Parts,
    directory: RunDirectory,
    printer: Progress,
    stop: StopRequest,
    supervisor: Supervisor,
) -> Tracking | None:
    """The attempt's tracking, or None where it is off."""
    if cfg.tracking.every is None:
        return None
    done = {row["step"] for row in read_rows(directory.path, "tracking")}
    return Tracking(cfg, parts.probe, slices(cfg.model), supervisor, directory, printer, stop, done)


def restore(parts: Parts, directory: RunDirectory, printer: Progress) -> int:
    """Load the newest good checkpoint; the step training goes on from."""
    found = checkpoint.latest(directory.checkpoints, printer.say)
    if found:
        parts.engine.load(found.state)
    step = found.state.step if found else 0
    directory.rewind(found.offsets if found else {})
    checkpoint.move_later(directory.checkpoints, step if found else -1, directory.set_aside)
    return step
