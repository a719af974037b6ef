"""A preflight from the first check to the stamp."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gpt2exp.assembly import Parts
from gpt2exp.config import Config
from gpt2exp.errors import ConfigError, Gpt2ExpError
from gpt2exp.identity import Identity, identify
from gpt2exp.preflight import checks, stamp
from gpt2exp.preflight.checks import Checklist
from gpt2exp.rules import ENGINES

FOLDER = Path()
"""Whose disk a run of this configuration would fill, as far as a preflight knows."""


def preflight(
    cfg: Config, hours: float | None = None, unless_fresh: bool = False, say: Callable[[str], None] = print
) -> Path:
    """Try a run out on this machine and stamp it.

    Args:
        cfg: the run.
        hours: refuse a projected time above this.
        unless_fresh: a stamp that matches is enough: nothing is run on the device then.
        say: prints a line.

    Returns:
        The stamp.

    Raises:
        Gpt2ExpError: a check failed; the run has no stamp then, not even an older one.
    """
    if ENGINES[cfg.hardware.kind].sql:
        raise ConfigError(
            f"preflight: nothing to try out on hardware={cfg.hardware.kind}: its limits are checked before every run, "
            f"and gpt2exp verify hardware={cfg.hardware.kind} compares it with the CPU"
        )
    checklist = Checklist(say)
    checklist.run("model file", partial(checks.model_file, cfg))
    inputs = checklist.run("data", partial(checks.data, cfg))
    run_digest = identify(cfg, inputs.record, {}).digests["run"]
    if not unless_fresh:
        stamp.withdraw(run_digest)
    try:
        checklist.run("token ids", partial(checks.token_ids, cfg, inputs))
        checklist.run("disk", partial(checks.disk, cfg, FOLDER))
        rows = checklist.run("memory", partial(checks.memory_estimate, cfg))
        parts = checklist.run("device", partial(checks.device, cfg, FOLDER, rows))
        identity = identify(cfg, inputs.record, parts.engine.executors())
        return try_out(cfg, parts, identity, checklist, hours, unless_fresh)
    except Gpt2ExpError:
        stamp.withdraw(run_digest)
        raise


def try_out(
    cfg: Config, parts: Parts, identity: Identity, checklist: Checklist, hours: float | None, unless_fresh: bool
) -> Path:
    """The stamp: one that matches already, where that is enough, else a new one. The engine is used up."""
    file = stamp.stamp_file(identity.digests["run"])
    try:
        if unless_fresh and not stamp.problems(identity):
            checklist.say(f"preflight made before, {file} matches")
            return file
        stamp.withdraw(identity.digests["run"])
        return stamped(checklist, identity, on_device(cfg, parts, checklist, hours))
    finally:
        parts.engine.close()


def on_device(cfg: Config, parts: Parts, checklist: Checklist, hours: float | None) -> dict[str, Any]:
    """The checks that compute, and what they measured."""
    checklist.run("tied weights", partial(checks.tied_weights, cfg, parts.engine))
    logits = checklist.run("forward", partial(checks.forward, cfg, parts))
    products = checklist.run("products", partial(checks.products, parts))
    gradients = checklist.run("gradients", partial(checks.gradients, cfg, parts))
    updates = checklist.run("updates", partial(checks.full_size_updates, cfg, parts))
    checklist.run("compilations", partial(checks.compilations, updates))
    seconds = checklist.run("time", partial(checks.projected_time, cfg, updates, hours))
    return {
        "logits_distance": logits.share,
        "products": products,
        "gradient_distance": gradients.share,
        "update_seconds": updates.seconds,
        "update_compilations": updates.compiles,
        "projected_seconds": seconds,
        "hours": hours,
    }


def stamped(checklist: Checklist, identity: Identity, measured: dict[str, Any]) -> Path:
    """Publish the stamp and say where it is."""
    file = stamp.publish(stamp.content(identity, checklist.results, measured))
    checklist.say(f"{checks.summary(checklist.results)}; {file}")
    return file
