"""check [overrides]: validate a run, project its time, memory and disk, and audit its effective steps.

Usage: gpt2exp check [overrides]

Trains nothing and writes nothing: two updates of one micro-batch are made on a disposable engine.
"""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from gpt2exp import assembly
from gpt2exp.compose import compose
from gpt2exp.config import Config, derive
from gpt2exp.data.windows import Window
from gpt2exp.effective_step import EffectiveStep, effective_steps
from gpt2exp.projection import checkpoint_bytes, parameter_count
from gpt2exp.train.progress import clock
from gpt2exp.verbs_help import positional


def main(arguments: list[str]) -> int:
    """Print the plan and the audit."""
    cfg = compose(positional(arguments, __doc__, at_least=0))
    parts = assembly.assemble(cfg, Path())
    rows = min(parts.engine.executors()["micro_batch_size"], derive(cfg).rows_per_step)
    window = parts.inputs.windows.window(0)
    sample = Window(window.inputs_NT[:rows], window.targets_NT[:rows])
    steps = effective_steps(cfg, parts.engine, sample)
    started = time.perf_counter()
    parts.engine.update(2, sample, 1.0)
    seconds = time.perf_counter() - started
    parts.engine.close()
    print_plan(cfg, parts, rows, seconds)
    print_audit(steps)
    return 0


def print_plan(cfg: Config, parts: assembly.Parts, rows: int, seconds: float) -> None:
    """Size of the run; the time is an upper figure, as each micro-batch is counted with an update of its own."""
    schedule, accumulation = cfg.schedule, derive(cfg).rows_per_step // rows
    for note in parts.inputs.notes:
        print(note)
    print(f"{cfg.model.label}: {parameter_count(cfg.model):,} parameters; arm {cfg.arm}, seed {cfg.seed}")
    print(
        f"{schedule.num_steps:,} steps of {schedule.tokens_per_step:,} tokens = {derive(cfg).train_tokens:,}; "
        f"{accumulation} micro-batches of {rows} rows a step; {len(derive(cfg).evaluation_steps)} evaluations"
    )
    disk = checkpoint_bytes(cfg, assembly.slot_count(cfg)) * cfg.checkpoint.keep
    print(
        f"projected at most {clock(seconds * accumulation * schedule.num_steps)} of training on this machine, "
        f"{disk / 1e9:.2f} GB of checkpoints, {psutil.virtual_memory().available / 1e9:.0f} GB memory available"
    )


def print_audit(steps: list[EffectiveStep]) -> None:
    """One line a group, and what it means where a matrix optimizer's scale is in play."""
    print("\neffective step at the peak learning rate, first update, decay apart:")
    header = ("group", "tensors", "lr", "update rms", "rms/lr", "spectral norm", "lr*decay", "half-life")
    lines = [header, *(cells(step) for step in steps)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        print("  " + "  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)))
    for step in steps:
        if step.hotter is not None:
            low, high = step.hotter
            print(
                f"{step.group}: scale {low:.2f} to {high:.2f} times sqrt(max(1, A/B)), Keller Jordan's; compare "
                "learning rates across papers with that factor"
            )


def cells(step: EffectiveStep) -> tuple[str, ...]:
    """A group as text; what does not apply is a dash."""
    return (
        step.group,
        str(step.tensors),
        f"{step.lr:.3g}",
        f"{step.update_rms:.3g}",
        f"{step.update_rms / step.lr:.3g}" if step.lr else "-",
        "-" if step.spectral_norm is None else f"{step.spectral_norm:.3g}",
        f"{step.decay:.3g}",
        "-" if step.half_life is None else f"{step.half_life:,.0f} steps",
    )
