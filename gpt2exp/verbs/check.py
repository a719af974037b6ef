"""check [overrides]: validate a run or a protocol, project time, memory, disk and price, audit effective steps.

Usage: gpt2exp check [overrides]

Trains nothing and writes nothing: two updates of one micro-batch are made on a disposable engine. With protocol=NAME
every run is composed and checked, the arms are shown to differ in nothing but the optimizer, and what the plan can
detect is said before anything is spent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from gpt2exp import assembly
from gpt2exp.compose import compose, hydra_ready
from gpt2exp.config import Config, Design, PlanConfig
from gpt2exp.data.windows import Window
from gpt2exp.derived import derive, probe_tokens
from gpt2exp.effective_step import EffectiveStep, effective_steps
from gpt2exp.errors import ConfigError
from gpt2exp.projection import checkpoint_bytes, parameter_count, size, snapshot_bytes, tracking_bytes
from gpt2exp.protocol.plan import Plan
from gpt2exp.schemas import CONFIG_NAME
from gpt2exp.spectral.backends import label
from gpt2exp.spectral.slices import slices
from gpt2exp.train.progress import clock
from gpt2exp.verbs_help import positional

FORWARD_SHARE = 1 / 3
"""Time of a token that is only evaluated, as a share of one that is trained on: a forward pass of three."""


def main(arguments: list[str]) -> int:
    """Print the plan and the audit."""
    overrides = positional(arguments, __doc__, at_least=0)
    planned = plan_and_configs(overrides)
    if planned is None:
        check_run(compose(overrides))
    else:
        check_protocol(*planned)
    return 0


def check_run(cfg: Config) -> None:
    """Plan and audit of one run."""
    parts, rows, steps, seconds = measured(cfg)
    print_plan(cfg, parts, rows, seconds)
    print_audit(steps)


def measured(cfg: Config) -> tuple[assembly.Parts, int, list[EffectiveStep], float]:
    """Parts, rows of a micro-batch, effective steps, and seconds of an update of one micro-batch."""
    parts = assembly.assemble(cfg, Path())
    rows = min(parts.engine.executors()["micro_batch_size"], derive(cfg).rows_per_step)
    window = parts.inputs.windows.window(0)
    sample = Window(window.inputs_NT[:rows], window.targets_NT[:rows])
    steps = effective_steps(cfg, parts.engine, sample)
    started = time.perf_counter()
    parts.engine.update(2, sample, 1.0)
    seconds = time.perf_counter() - started
    parts.engine.close()
    return parts, rows, steps, seconds


def plan_and_configs(overrides: Sequence[str]) -> tuple[Plan, list[Config]] | None:
    """The plan of `protocol=NAME` and its runs' configurations; None without a protocol that declares a plan.

    Raises:
        ConfigError: with every problem of every run.
    """
    if not any(text.partition("=")[0] == "protocol" for text in overrides):
        return None
    from hydra import compose as hydra_compose

    from gpt2exp import gate
    from gpt2exp.explain import Explainer, parse

    with hydra_ready():
        try:
            single = [text for text in overrides if not parse(text).is_sweep_override()]
            composed = hydra_compose(CONFIG_NAME, overrides=single, return_hydra_config=True)
        except Exception as error:
            raise ConfigError(Explainer(CONFIG_NAME, multirun=True).explain(overrides, error)) from None
        composed.hydra.overrides.task = list(overrides)
        runs = gate.composed_runs(composed)
        problems = gate.run_problems(runs)
        if problems:
            raise ConfigError(problems)
        plan = gate.plan_of(composed.hydra, runs)
    return None if plan is None else (plan, [run.config for run in runs if run.config is not None])


def check_protocol(plan: Plan, configs: Sequence[Config]) -> None:
    """Runs, tokens, what the plan can detect, then time, disk and price, and each arm's audit."""
    print(f"{plan.name}: {len(plan.runs)} runs ({plan.declared.design.name}), plan {plan.fingerprint[:12]}")
    for run in plan.runs:
        print(f"  {run.folder}  seed {run.seed}  arm {run.arm}")
    if plan.declared.design is Design.paired:
        print("the runs differ in seed and optimizer only")
    print(f"{plan.tokens_per_run:,} tokens a run, {plan.tokens_per_run * len(plan.runs):,} in all")
    for line in power_lines(plan.declared):
        print(line)
    first = {cfg.arm: cfg for cfg in reversed(configs)}
    seconds = sum(print_arm(cfg, plan.declared) * sum(c.arm == cfg.arm for c in configs) for cfg in first.values())
    print_totals(plan.declared, configs, seconds)


def print_arm(cfg: Config, plan: PlanConfig) -> float:
    """Projected seconds of one run of an arm, from the plan's throughput, else from this machine; its audit."""
    if plan.tokens_per_second is not None:
        seconds = equivalent_tokens(cfg) / plan.tokens_per_second
        print(f"\narm {cfg.arm}: {clock(seconds)} a run at plan.tokens_per_second={plan.tokens_per_second:g}")
        return seconds
    _, rows, steps, update = measured(cfg)
    seconds = equivalent_tokens(cfg) * update / (rows * cfg.schedule.context_length)
    print(f"\narm {cfg.arm}: at most {clock(seconds)} a run on this machine")
    print_audit(steps)
    return seconds


def equivalent_tokens(cfg: Config) -> float:
    """Tokens of training that a run's training, evaluations and probes are worth."""
    derived = derive(cfg)
    probes = len(set(derived.token_error_steps) - set(derived.evaluation_steps)) * probe_tokens(cfg)
    evaluated = len(derived.evaluation_steps) * cfg.evaluation.tokens + probes
    return derived.train_tokens + FORWARD_SHARE * evaluated


def print_totals(plan: PlanConfig, configs: Sequence[Config], seconds: float) -> None:
    """Time, disk and price of everything."""
    disk = sum(checkpoint_bytes(cfg, assembly.slot_count(cfg)) * cfg.checkpoint.keep for cfg in configs)
    waiting = sum(tracking_bytes(cfg) for cfg in configs)
    print(f"\nall runs, one after the other: at most {clock(seconds)}; {size(disk + waiting)} of disk")
    if plan.price_per_hour is not None:
        print(f"price at {plan.price_per_hour:g} an hour: {seconds / 3600 * plan.price_per_hour:.2f}")


def power_lines(plan: PlanConfig) -> list[str]:
    """What the number of pairs can and cannot show."""
    from gpt2exp.report.paired import exact_floor, minimum_detectable_effect

    n = len(plan.seeds)
    if plan.design is not Design.paired or len(plan.arms) < 2:
        return []
    if n < 2:
        return ["1 pair: no variance, so no interval and no test; differences can be shown, not judged"]
    in_sd = minimum_detectable_effect(1.0, n)
    line = f"{n} pairs: a paired t test at 5 % finds a difference of {in_sd:.2f} SD of the differences in 80 % of cases"
    if plan.sd_of_difference is not None:
        line += f"; with plan.sd_of_difference={plan.sd_of_difference:g}: {in_sd * plan.sd_of_difference:.4f}"
    return [line, f"the exact sign-flip test cannot give a p below {exact_floor(n):.3g}"]


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
    spectra = len(derive(cfg).spectra_steps)
    if spectra:
        print(
            f"spectra of {len(slices(cfg.model))} matrices at {spectra} steps by {label(cfg.tracking.backend.name)}: "
            f"snapshots of {size(snapshot_bytes(cfg))}, at most {size(tracking_bytes(cfg))} at once"
        )
    print(
        f"projected at most {clock(seconds * accumulation * schedule.num_steps)} of training on this machine, "
        f"{size(disk)} of checkpoints, {size(psutil.virtual_memory().available)} of memory available"
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
