"""Findings made by hand: runs as `run.json` and the row files hold them, at losses that a test chooses."""

from __future__ import annotations

import copy
import hashlib
import math
from pathlib import Path

from gpt2exp.report.censoring import compare_reaching, crossing
from gpt2exp.report.findings import (
    CurvePoint,
    Difference,
    EndpointFinding,
    Findings,
    Foreign,
    Kind,
    PairCheck,
    ReachFinding,
    Requested,
)
from gpt2exp.report.judgement import judge
from gpt2exp.report.runs import Run
from gpt2exp.report.statistics import compare, summarize

FOLDER = Path("outputs/six_run_nano")
EVERY, STEPS, TOKENS = 50, 200, 4096
LOSSES = {
    "muonclip": {42: 3.2581, 43: 3.2609, 44: 3.2567},
    "adamw": {42: 3.2791, 43: 3.2842, 44: 3.2780},
}
"""Those of docs/statistics.md."""
OPTIMIZERS = {
    "adamw": {"kind": "adamw", "lr": 6e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
    "muonclip": {"kind": "muonclip", "lr": 0.02, "momentum": 0.95, "weight_decay": 0.1, "qk_clip_threshold": 100.0},
}
TITLES = {"final_val_loss": "final validation loss", "final_token_error": "final token error"}


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def record(arm, seed, status="complete", **changes):
    """`run.json`, with dotted keys of `changes` (dots as __) set."""
    execution = {
        "hardware": "cpu", "engine": "torch", "device": "cpu", "device_model": "AMD EPYC", "devices": 1, "ranks": 1,
        "threads": 2, "orthogonalizer": "eigh", "isa": "AVX512", "torch": "2.13.0+cpu", "micro_batch_size": 4,
        "numpy": "2.4.6",
    }  # fmt: skip
    made = {
        "schema": 1,
        "status": status,
        "arm": arm,
        "seed": seed,
        "ids": {"model": "reference-nano-packed-qkv", "optimizer": arm, "budget": f"nano-{STEPS}x{TOKENS}",
                "data": "stdlib-exact_sequential"},
        "digests": {"run": sha(f"{arm}{seed}"), "arm": sha(arm), "protocol": sha("protocol"),
                    "training": sha(f"t{arm}{seed}"), "measurement": sha("m"), "execution": sha("e")},
        "initial_weights_sha256": sha(f"weights {seed}"),
        "training": {
            "science_version": 1,
            "seed": seed,
            "precision": "fp32",
            "model": {"source": "reference", "n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 128,
                      "vocab_size": 256, "bias": True, "sha256": None},
            "optimizer": OPTIMIZERS.get(arm, OPTIMIZERS["adamw"]),
            "schedule": {"num_steps": STEPS, "warmup_steps": 20, "warmup": "upstream", "decay": "cosine",
                         "min_lr_ratio": 0.0, "tokens_per_step": TOKENS, "context_length": 128},
            "data": {"corpus": sha("corpus"), "tokenizer": sha("bytes"), "order": "exact_sequential",
                     "order_digest": sha("order"), "window_tokens": None, "allow_repeat": False},
        },
        "measurement": {"evaluation": {"every": EVERY, "tokens": 65536}, "split": sha("corpus")},
        "execution": execution,
        "choices": {"protocol": "six_run_nano", "optimizer": arm},
        "overrides": [f"seed={seed}", f"optimizer={arm}"],
        "corpus": {"kind": "stdlib"},
        "host": "laptop",
        "python": "3.11.7",
        "versions": {"gpt2exp": "0.1.0", "torch": "2.13.0+cpu", "numpy": "2.4.6", "hydra-core": "1.3.8"},
        "attempts": [{"attempt": 1, "started": f"2026-11-30T2{seed % 10}:14:45+00:00", "from_step": 0, "host": "laptop",
                      "ended": f"2026-11-30T2{seed % 10}:15:31+00:00", "status": status, "reason": None}],
        "reason": None,
    }  # fmt: skip
    made = copy.deepcopy(made)
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        place = made
        for key in path:
            place = place[key]
        place[last] = value
    return made


def a_run(arm="muonclip", seed=42, final=3.2581, *, steps=STEPS, folder=None, status=None, **changes):
    """A run of `steps` steps whose loss falls from 5.55 towards `final`; None is a loss that was not finite."""
    floor = 3.27 if final is None else final
    grid = range(0, steps + 1, EVERY)
    losses = {step: floor + (5.55 - floor) * math.exp(-step / 25) * (1 - step / STEPS) for step in grid}
    if final is None:
        losses[steps] = None
    rows = [
        {"step": s, "tokens": s * TOKENS, "val_loss": loss, "token_error": None if loss is None else loss / 6,
         "target_tokens": 65536}
        for s, loss in losses.items()
    ]  # fmt: skip
    metrics = [{"step": s, "tokens": s * TOKENS, "loss": 5 - s / 100, "gated": False} for s in range(1, steps + 1)]
    timing = [{"step": s, "attempt": 1, "data": 0.01, "update": 0.2 + seed / 1000} for s in range(1, steps + 1)]
    timing = [{"step": 0, "attempt": 1, "evaluate": 1.5}, *timing]
    status = status or ("complete" if steps == STEPS else "stopped")
    path = Path(folder) if folder else FOLDER / f"seed={seed}" / arm
    return Run(path, record(arm, seed, status, **changes), {"seed": seed}, metrics, rows, [], timing)


def requested(runs, wanted, folder=FOLDER):
    """What was asked for: (arm, seed) pairs; a run that is not among `runs` is absent."""
    there = {(run.arm, run.seed): run for run in runs}
    found = []
    for arm, seed in wanted:
        run = there.get((arm, seed))
        at = f"seed={seed}/{arm}" if run is None else run.path.relative_to(folder).as_posix()
        reason = "" if run is None or run.complete else "stopped at its deadline"
        found.append(
            Requested(at, arm, seed, run.status if run else "absent", run.step if run else 0, STEPS, reason)
        )  # fmt: skip
    return tuple(found)


def plan(arms, seeds, **declared):
    given = {"design": "paired", "seeds": list(seeds), "arms": list(arms), "primary": "final_val_loss",
             "secondary": ["final_token_error", "steps_to_target"], "target_val_loss": 3.28, "tuning_trials": [],
             "tuning_seeds": [], "sd_of_difference": None, **declared}  # fmt: skip
    return {"protocol": "six_run_nano", "declared": given, "tokens_per_run": STEPS * TOKENS, "fingerprint": sha("plan")}


def protocol(losses=LOSSES, *, absent=(), stopped=(), comparable=None, names=None, **changes):
    """Findings of a protocol: arms and seeds of `losses`, less the `absent` runs, with `stopped` ones cut short."""
    names = names or {}
    arms = tuple(names.get(arm, arm) for arm in losses)
    wanted = [(names.get(arm, arm), seed) for seed in next(iter(losses.values())) for arm in losses]
    values = {(names.get(arm, arm), seed): loss for arm, by_seed in losses.items() for seed, loss in by_seed.items()}
    runs = tuple(
        a_run(arm, seed, values[arm, seed], steps=100 if (arm, seed) in stopped else STEPS,
              folder=FOLDER / f"seed={seed}" / f"arm{arms.index(arm)}")
        for arm, seed in wanted
        if (arm, seed) not in absent
    )  # fmt: skip
    whole = not absent and not stopped if comparable is None else comparable
    endpoints = tuple(endpoint(runs, arms, name, whole) for name in TITLES)
    reach = tuple(reach_finding(runs, arms, axis, whole) for axis in ("step", "seconds"))
    seeds = tuple(losses[next(iter(losses))])
    return Findings(
        **{
            "kind": Kind.protocol,
            "title": "six_run_nano",
            "folder": FOLDER,
            "runs": runs,
            "plan": plan(arms, seeds),
            "requested": requested(runs, wanted),
            "pairs": tuple(PairCheck(s, arms, sha(f"weights {s}"), sha("order")) for s in seeds) if whole else (),
            "comparable": whole,
            "endpoints": endpoints,
            "reaching": reach,
            "judgement": judgement(endpoints, reach) if whole and len(arms) > 1 else None,
            "confounds": ("optimizer.lr: 0.02 in muonclip, 0.0006 in adamw.",),
            **changes,
        }
    )


def endpoint(runs, arms, name, whole):
    column = name.removeprefix("final_")
    seeds = sorted({run.seed for run in runs})
    found = [summarize(arm, {run.seed: run.final(column) for run in runs if run.arm == arm}, seeds) for arm in arms]
    unit = "nats a token" if column == "val_loss" else "share of tokens"
    pairs = tuple(compare(TITLES[name], found[0], other, unit=unit) for other in found[1:]) if whole else ()
    return EndpointFinding(name, unit, name == "final_val_loss", tuple(found), pairs)


def reach_finding(runs, arms, axis, whole):
    crossed = {(run.arm, run.seed): crossing(run.evaluation_records(), 3.28, axis) for run in runs}
    by_arm = {arm: {seed: c for (name, seed), c in crossed.items() if name == arm} for arm in arms}
    pairs = [compare_reaching(f"{axis} to the target", (arms[0], by_arm[arms[0]]), (b, by_arm[b])) for b in arms[1:]]
    summaries = (pairs[0].a, *(pair.b for pair in pairs)) if pairs else ()
    compared = tuple(pairs) if whole and axis == "step" else ()
    return ReachFinding(axis, 3.28, crossed, tuple(summaries) if whole else (), compared)


def judgement(endpoints, reach):
    primary, *others = [c for e in endpoints for c in e.comparisons]
    return judge(primary, [*others, *(c for r in reach for c in r.comparisons)])


def single_run(**changes):
    run = a_run(**changes)
    return Findings(Kind.run, run.name, run.path, (run,), requested=itself(run))


def itself(*runs):
    """What is said of runs that no plan asked for: only how far they got."""
    return tuple(Requested(str(run.path), run.arm, run.seed, run.status, run.step, STEPS) for run in runs)


def unrelated_runs():
    """The same arm and seed twice, at other widths: what no plan joins."""
    a = a_run(folder="runs/first")
    b = a_run(folder="runs/second", final=3.4, training__model__n_embd=64, execution__threads=1)
    c = a_run("adamw", folder="runs/third", final=None)
    widths = {"128": ("first", "third"), "64": ("second",)}
    return Findings(
        Kind.runs,
        "runs",
        Path("runs"),
        (a, b, c),
        requested=itself(a, b, c),
        differences=(Difference("training", "model.n_embd", widths),),
    )


def foreign_curve(tokens=TOKENS):
    points = tuple(CurvePoint(step, step * tokens, 11.0092 - step / 100) for step in range(0, 401, EVERY))
    return Foreign("llm.c log main.log", "logs/main.log", "AdamW", points, ("Tokens are step x 4,096.",))


CASES = {
    "complete": protocol,
    "incomplete": lambda: protocol(absent=[("adamw", 44)], stopped=[("muonclip", 44)]),
    "diverged": lambda: protocol({"muonclip": {42: 3.25, 43: None}, "adamw": {42: 3.27, 43: 3.28}}),
    "one pair": lambda: protocol({"muonclip": {42: 3.25}, "adamw": {42: 3.27}}),
    "equal differences": lambda: protocol({"muonclip": {42: 3.0, 43: 3.5}, "adamw": {42: 3.25, 43: 3.75}}),
    "three arms": lambda: protocol({**LOSSES, "sgd": {42: 4.1, 43: 4.2, 44: 4.15}}),
    "one arm": lambda: protocol({"adamw": {42: 3.2, 43: 3.3}}, pairs=()),
    "one run": single_run,
    "unrelated runs": unrelated_runs,
    "foreign curve": lambda: protocol(foreign=(foreign_curve(),)),
}
"""Everything a page has to cope with: name -> what makes its findings."""
