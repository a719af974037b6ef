"""What follows from a configuration alone: pure functions, so that nothing derived is ever stored twice."""

from __future__ import annotations

from dataclasses import dataclass

from gpt2exp.config import Config, ScheduleConfig, TrackingConfig


@dataclass(frozen=True)
class Derived:
    """What follows from a configuration alone."""

    rows_per_step: int
    train_tokens: int
    warmup_steps: int
    evaluation_steps: tuple[int, ...]
    spectra_steps: tuple[int, ...]
    token_error_steps: tuple[int, ...]


def derive(cfg: Config) -> Derived:
    """Everything computed from the configuration; pure."""
    schedule = cfg.schedule
    return Derived(
        rows_per_step=schedule.tokens_per_step // schedule.context_length,
        train_tokens=schedule.num_steps * schedule.tokens_per_step,
        warmup_steps=warmup_steps(schedule),
        evaluation_steps=grid(cfg.evaluation.every, schedule.num_steps),
        spectra_steps=spectra_steps(cfg.tracking, schedule.num_steps),
        token_error_steps=token_error_steps(cfg.tracking, schedule.num_steps),
    )


def spectra_steps(tracking: TrackingConfig, num_steps: int) -> tuple[int, ...]:
    """Steps at which the weights are kept for their spectra."""
    if tracking.every is None:
        return ()
    return tuple(sorted({*grid(tracking.every, num_steps), *(step for step in tracking.also_at if step <= num_steps)}))


def token_error_steps(tracking: TrackingConfig, num_steps: int) -> tuple[int, ...]:
    """Steps at which the token error is taken: those of the spectra, and more where asked for."""
    if tracking.every is None:
        return ()
    return tuple(sorted({*spectra_steps(tracking, num_steps), *grid(tracking.token_error_every, num_steps)}))


def probe_tokens(cfg: Config) -> int:
    """Validation tokens that the token error is taken from at steps without an evaluation; 0 for none."""
    if cfg.tracking.every is None:
        return 0
    if cfg.tracking.probe_tokens is not None:
        return cfg.tracking.probe_tokens
    return cfg.evaluation.tokens if cfg.evaluation.every is not None else 0


def warmup_steps(schedule: ScheduleConfig) -> int:
    """Warm-up length: as given, or the rounded fraction of `num_steps`."""
    if schedule.warmup_steps is not None:
        return schedule.warmup_steps
    return round((schedule.warmup_fraction or 0.0) * schedule.num_steps)


def grid(every: int | None, num_steps: int) -> tuple[int, ...]:
    """Steps {0, multiples of `every`, last}; empty where `every` is None."""
    if every is None:
        return ()
    return tuple(sorted({*range(0, num_steps + 1, every), num_steps}))
