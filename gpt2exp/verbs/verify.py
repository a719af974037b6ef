"""verify hardware=KIND | upstream: an engine against the CPU reference; our numbers against upstream's script.

Usage: gpt2exp verify upstream [--keep FOLDER]  or  gpt2exp verify hardware=KIND [overrides]

hardware=KIND: makes the same updates with that engine and with torch on the CPU, in the same precision, from the same
seed and tokens, and prints table by table how far they are apart: gradients of an accumulated update, then for each
step loss, gradient norm, clip coefficient, largest attention logits, clipped heads, gating, compilations, every weight
and every optimizer slot, and an evaluation before and after. Of a database, gradients are compared at every step too,
and weights, slots and gradients are shown for each of its tables. hardware=cpu is that reference itself: there, the
executor that takes its decisions on the device, as accelerators do, is compared with it.

Without overrides: model=tiny, synthetic tokens, six steps of MuonClip with so low a threshold that heads are clipped,
plain Newton-Schulz, fp32. The learning rate's factor varies from step to step and is 0 once, whatever the schedule.
Every group and key can be set as for training; schedule.num_steps sets the steps. A preset's model, optimizer and
schedule are used, its corpus only with data=. Writes nothing.

upstream: trains GPT-2 (124M, 10 steps) twice on the same small shards, seed and thread count, each in a process of
its own: with karpathy/llm.c's train_gpt2.py as it is, and with gpt2exp preset=upstream_parity. Prints losses,
norms, learning rates and validation losses of both, with the digits upstream prints. Takes minutes and about
3 GB of memory. OMP_NUM_THREADS sets the threads of both (default: the cores this process may use).

--keep FOLDER keeps shards, outputs and our run directory in FOLDER, which must be new or empty.

Exit status: 0 all within tolerance, or all digits equal; 5 not; 3 the environment lacks what the hardware needs,
upstream's file or GPT-2's vocabulary is missing (the latter comes with pip install 'gpt2exp[bpe]'), or a process
failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2exp.errors import ConfigError
from gpt2exp.suggest import did_you_mean
from gpt2exp.verbs_help import positional

if TYPE_CHECKING:
    from gpt2exp.config import Config

KEEP = "--keep"
SUBJECTS = ("upstream", "hardware=KIND")
STEPS = 6
DEFAULTS = {
    "model": ("model=tiny",),
    "optimizer": ("optimizer=muonclip", "optimizer.qk_clip_threshold=0.05", "optimizer.weight_decay=0.02"),
    "schedule": (
        "schedule=nano",
        f"schedule.num_steps={STEPS}",
        "schedule.warmup_steps=0",
        "schedule.tokens_per_step=512",
        "schedule.context_length=32",
    ),
    "data": ("data=synthetic", "data.train_tokens=100000", "data.val_tokens=10000"),
    "evaluation": ("evaluation=off",),
    "tracking": ("tracking=off",),
}
"""By group, for those that are not chosen. With this weight decay two scalars of a step are equal once."""
BESIDE_A_PRESET = {
    "data": DEFAULTS["data"],
    "evaluation": ("evaluation=off", "evaluation.every=null"),
    "tracking": ("tracking=off", "tracking.every=null"),
}
"""A preset chooses the model, the optimizer and the schedule, and it may set keys of the other groups, which count for
more than a group's option; still no corpus is read that nobody named."""
SQL_DEFAULTS = {
    **DEFAULTS,
    "model": ("model=nanogpt_mini",),
    "schedule": (*DEFAULTS["schedule"][:3], "schedule.tokens_per_step=64", "schedule.context_length=16"),
    "data": (*DEFAULTS["data"], "data.vocab_size=65"),
}
"""Smaller: a database trains a thousand times slower."""
ALWAYS = (
    "hardware.micro_batch_size=1",
    "hardware.orthogonalizer=ns",
    "checkpoint.keep=0",
    "sample.tokens=0",
    "logging.log_every=1",
)


def main(arguments: list[str]) -> int:
    """Verify; 0 if everything agrees."""
    if any("=" in argument and not argument.startswith("-") for argument in arguments):
        return verify_hardware(positional(arguments, __doc__, at_least=1))
    rest, keep = split_keep(arguments)
    (subject,) = positional(rest, __doc__, at_least=1, at_most=1)
    if subject not in SUBJECTS:
        raise ConfigError(
            f"verify {subject}: there is {', '.join(SUBJECTS)}{did_you_mean(subject, SUBJECTS)}; "
            "see gpt2exp verify --help"
        )
    from gpt2exp.verification.upstream_parity import verify_upstream

    verify_upstream(Path(keep).expanduser() if keep is not None else None)
    return 0


def verify_hardware(overrides: Sequence[str]) -> int:
    """Compare an engine with the reference and print what was found.

    Raises:
        ConfigError: no hardware is named, or the overrides do not fit.
        RefusedError: the environment lacks what the hardware needs.
        NumericalError: something is out of tolerance.
    """
    from gpt2exp.verification.engine_parity import verify_engine
    from gpt2exp.verification.parity_tables import conclude, executor_lines

    hardware = [text for text in overrides if text.startswith("hardware=")]
    if not hardware:
        raise ConfigError(f"verify {' '.join(overrides)}: name the engine to verify, hardware=KIND")
    cfg = configuration(overrides)
    print(described(cfg), flush=True)
    parity = verify_engine(cfg, steps_of(cfg, overrides))
    print("\n".join(executor_lines(parity.reference, parity.other)))
    conclude(hardware[-1], parity)
    return 0


def configuration(overrides: Sequence[str]) -> Config:
    """The overrides on the defaults of this verb; fp32 where neither they nor the hardware ask for more."""
    from gpt2exp.command_line import parse
    from gpt2exp.compose import compose
    from gpt2exp.config import Precision
    from gpt2exp.rules import ENGINES

    given = parse(overrides).overrides
    keys = {text.partition("=")[0] for text in given}
    sql = any(text.removeprefix("hardware=") == kind for text in given for kind in ENGINES if ENGINES[kind].sql)
    groups = BESIDE_A_PRESET if "preset" in keys else SQL_DEFAULTS if sql else DEFAULTS
    defaults = [text for group, texts in groups.items() if group not in keys for text in texts]
    cfg = compose([*defaults, *ALWAYS, *given])
    if cfg.precision is Precision.bf16 and keys.isdisjoint(("precision", "hardware.default_precision")):
        return replace(cfg, precision=Precision.fp32)
    return cfg


def steps_of(cfg: Config, overrides: Sequence[str]) -> int:
    """As many as asked for, else a few: a schedule chosen by name may be days long."""
    asked = any(text.startswith("schedule.num_steps=") for text in overrides)
    return cfg.schedule.num_steps if asked else min(STEPS, cfg.schedule.num_steps)


def described(cfg: Config) -> str:
    """What is run, before it is."""
    schedule, threshold = cfg.schedule, getattr(cfg.optimizer, "qk_clip_threshold", None)
    compared = "deferred decisions" if cfg.hardware.kind == "cpu" else cfg.hardware.kind
    clip = "" if threshold is None else f" with QK threshold {threshold:g}"
    return (
        f"{compared} against the reference, torch on the CPU, in {cfg.precision.name}\n"
        f"model {cfg.model.label}, optimizer {cfg.optimizer.label}{clip}, seed {cfg.seed}, data {cfg.data.kind}, "
        f"{schedule.tokens_per_step} tokens a step in rows of {schedule.context_length}"
    )


def split_keep(arguments: list[str]) -> tuple[list[str], str | None]:
    """The other arguments, and the value of `--keep FOLDER` or `--keep=FOLDER`.

    Raises:
        ConfigError: `--keep` without a folder.
    """
    rest: list[str] = []
    keep = None
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if name != KEEP:
            rest.append(argument)
            continue
        keep = value if equals else next(remaining, "")
        if not keep or keep.startswith("-"):
            raise ConfigError(f"{KEEP} needs a folder: gpt2exp verify upstream {KEEP} FOLDER")
    return rest, keep
