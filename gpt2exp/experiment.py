"""The story of a run: inputs, engine, identity, claim, training, sample, done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2exp import rundir
from gpt2exp.config import Config, Preflight
from gpt2exp.errors import Gpt2ExpError, NumericalError, RefusedError, StoppedError, StorageError
from gpt2exp.identity import Identity, identify
from gpt2exp.rundir import RunDirectory, Status

if TYPE_CHECKING:
    from gpt2exp.assembly import Parts
    from gpt2exp.spectral.supervisor import Supervisor
    from gpt2exp.train.loop import Loop
    from gpt2exp.train.progress import Progress


@dataclass(frozen=True)
class Request:
    """Where a run goes and what was asked for, for the record."""

    directory: Path
    choices: Mapping[str, Any]
    overrides: tuple[str, ...]

    @classmethod
    def from_hydra(cls, hydra: Any) -> Request:
        """From `HydraConfig.get()` inside a task."""
        choices = {k: v for k, v in hydra.runtime.choices.items() if "/" not in k}
        return cls(Path(hydra.runtime.output_dir), choices, tuple(hydra.overrides.task))


def run(cfg: Config, request: Request) -> float | None:
    """Train one run to its end; the final validation loss, if there is one.

    Raises:
        Gpt2ExpError: refused, stopped or failed; the run directory says why.
    """
    from gpt2exp.assembly import assemble
    from gpt2exp.preflight import policy

    resuming = cfg.resume.enabled and rundir.is_run(request.directory)
    try:
        if not resuming:
            rundir.check_unused(request.directory)
        if resuming and trained_already(request.directory):
            cfg = replace(cfg, hardware=replace(cfg.hardware, preflight=Preflight.off))
        policy.prepare(cfg)
        parts = assemble(cfg, request.directory)
        identity = identify(cfg, parts.inputs.record, parts.engine.executors())
        preflight = policy.accepted(cfg, identity, request.overrides)
        directory = open_directory(cfg, request, parts, identity, preflight, resuming)
    except Gpt2ExpError:
        rundir.discard_if_empty(request.directory)
        raise
    try:
        return train(cfg, parts, directory, identity)
    finally:
        parts.engine.close()
        directory.close()


def trained_already(directory: Path) -> bool:
    """Whether nothing but measuring is left of a run: then no device has to be tried out."""
    return rundir.read_record(directory)["status"] in (Status.complete.name, Status.measuring.name)


def open_directory(
    cfg: Config, request: Request, parts: Parts, identity: Identity, preflight: dict[str, str] | None, resuming: bool
) -> RunDirectory:
    """Claim a new directory, or reopen the run that is being resumed; it remembers the newest preflight."""
    from gpt2exp.assembly import record_of, yaml_of
    from gpt2exp.train.resume import check_same_run

    if not resuming:
        record = {**record_of(cfg, request, parts, identity), "preflight": preflight}
        return RunDirectory.claim(request.directory, record, yaml_of(cfg))
    directory = RunDirectory.reopen(request.directory)
    try:
        check_same_run(directory, identity, cfg.resume.allow_inexact)
        if preflight is not None:
            directory.record["preflight"] = preflight
    except Gpt2ExpError:
        directory.close()
        raise
    return directory


def train(cfg: Config, parts: Parts, directory: RunDirectory, identity: Identity) -> float | None:
    """One attempt: restore or start, loop, sample, spectra, and a status whatever happens."""
    from gpt2exp.spectral.snapshots import Queue
    from gpt2exp.spectral.supervisor import supervised
    from gpt2exp.train import resume
    from gpt2exp.train.interrupt import stop_on_signals

    if directory.record["status"] == Status.complete.name:
        print(f"{directory.path}: complete already, nothing to do")
        return final_loss(directory)
    with (
        stop_on_signals() as stop,
        recording(directory),
        resume.progress(cfg, directory) as progress,
        supervised(Queue(directory.spectra), progress.say) as supervisor,
    ):
        if directory.record["status"] != Status.measuring.name:
            loop = resume.start(cfg, parts, directory, identity, progress, stop, supervisor)
            introduce(progress, cfg, parts, directory)
            progress.start()
            loop.train()
            progress.close_bar()
            conclude(cfg, parts, loop, progress)
        measure(directory, supervisor, lambda: stop.reason)
    return final_loss(directory)


def measure(directory: RunDirectory, supervisor: Supervisor, stopped: Callable[[], str | None]) -> None:
    """Trained to the end: fit the spectra that are still to come, then the run is complete.

    Raises:
        StoppedError: stopped first, or a snapshot cannot be fitted.
    """
    from gpt2exp.spectral.completion import finish, headline

    if rundir.read_rows(directory.path, "tracking"):
        directory.set_status(Status.measuring)
        finish(directory.path, supervisor, stopped)
        supervisor.say(headline(directory.path))
    directory.set_status(Status.complete, final_val_loss=final_loss(directory))


@contextmanager
def recording(directory: RunDirectory) -> Iterator[None]:
    """Whatever ends the attempt, `run.json` says so."""
    try:
        yield
    except StoppedError as error:
        if directory.record["status"] == Status.measuring.name:
            directory.set_status(Status.measuring, str(error))
            raise StoppedError(
                f"trained to the end, but spectra are missing ({error}); continue with gpt2exp spectra {directory.path}"
            ) from None
        paused = str(error).startswith("stop_after_steps")
        directory.set_status(Status.paused if paused else Status.stopped, str(error))
        raise StoppedError(
            f"{'paused' if paused else 'stopped'} ({error}); continue with gpt2exp resume {directory.path}"
        ) from None
    except KeyboardInterrupt:
        directory.set_status(Status.stopped, "interrupted twice: the newest checkpoint stands")
        raise
    except RefusedError as error:
        _try_status(directory, str(error))
        raise RefusedError(f"{error}; the newest checkpoint stands: gpt2exp resume {directory.path}") from error
    except (NumericalError, StorageError) as error:
        _try_status(directory, str(error))
        raise
    except OSError as error:
        _try_status(directory, str(error))
        raise StorageError(f"{directory.path}: {error}; earlier checkpoints are intact") from error
    except BaseException as error:
        _try_status(directory, f"{type(error).__name__}: {error}")
        raise


def _try_status(directory: RunDirectory, reason: str) -> None:
    """A full disk must not hide the first error behind a second one."""
    try:
        directory.set_status(Status.failed, reason)
    except OSError:
        pass


def introduce(progress: Progress, cfg: Config, parts: Parts, directory: RunDirectory) -> None:
    """The first lines of a run."""
    from gpt2exp.projection import parameter_count

    executors = parts.engine.executors()
    progress.say(
        f"{cfg.model.label} ({cfg.model.source.name}, {parameter_count(cfg.model):,} parameters), "
        f"{cfg.optimizer.label}, seed {cfg.seed}, {cfg.data.kind}"
    )
    progress.say(
        f"{cfg.schedule.num_steps} steps of {cfg.schedule.tokens_per_step:,} tokens, context "
        f"{cfg.schedule.context_length}, {cfg.precision.name} on {executors['device']} "
        f"({executors['threads']} threads, micro-batch {executors['micro_batch_size']})"
    )
    for note in parts.inputs.notes:
        progress.say(note)
    progress.say(f"run directory {directory.path}")


def conclude(cfg: Config, parts: Parts, loop: Loop, progress: Progress) -> None:
    """The last lines: the loss beside the unigram entropy, and a sample."""
    from gpt2exp.train.sample import sample

    rows = rundir.read_rows(loop.run.path, "evaluations")
    if loop.validation is not None and rows and rows[-1]["val_loss"] is not None:
        progress.say(
            f"final val loss {rows[-1]['val_loss']:.4f} nats a token; unigram entropy of the same tokens "
            f"{loop.validation.unigram_entropy():.4f}: what a model that ignores context could reach"
        )
    codec = parts.inputs.corpus.tokenizer
    if cfg.sample.tokens and codec is not None:
        text = sample(parts.engine, codec, cfg.sample, cfg.schedule.context_length, cfg.seed)
        progress.say(f"sample:\n{text}")


def final_loss(directory: RunDirectory) -> float | None:
    """The last validation loss of a run."""
    rows = rundir.read_rows(directory.path, "evaluations")
    return rows[-1]["val_loss"] if rows else None
