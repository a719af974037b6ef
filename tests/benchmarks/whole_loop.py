"""Whole training steps, ours against upstream's: processes in turn on the same shards, seed and threads."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarking import Measurement, Settings, seconds

from gpt2exp import rundir
from gpt2exp.data.shards import write_shard
from gpt2exp.data.synthetic import TRAIN_SEED, synthetic_tokens
from gpt2exp.models.upstream import UPSTREAM, locate
from gpt2exp.verification.child import Child
from gpt2exp.verification.digits import Comparison, our_digits, upstream_digits
from gpt2exp.verification.upstream_parity import Workplace, prepare

WARM_UP_STEPS = 2
"""Not counted: memory is still growing and PyTorch creates AdamW's state in the first."""
_MILLISECONDS = re.compile(r"^step .*\((\S+) ms \|", re.MULTILINE)


@dataclass(frozen=True)
class Loop:
    """One comparison: the command lines of both, in a folder with upstream's file and train_*.bin."""

    upstream_command: Callable[[int], list[str]]
    our_overrides: tuple[str, ...]
    tokens_per_step: int
    steps: int
    rounds: int

    def measure(self, settings: Settings) -> Measurement:
        """Alternate the processes; a round's time is the median over its steps."""
        with TemporaryDirectory(prefix="gpt2exp_benchmark_") as folder:
            workplace = prepare(Path(folder), locate(None), settings.threads)
            tokens = synthetic_tokens(TRAIN_SEED, self.steps * self.tokens_per_step + 1, 50_257)
            for shard in workplace.folder.glob("train_0*.bin"):
                shard.unlink()
            write_shard(workplace.folder / "train_000001.bin", tokens)
            rounds = [self.round(workplace, number) for number in range(self.rounds)]
        ours, peer = ([median(steps) for steps in side] for side in zip(*[r.times for r in rounds], strict=True))
        return Measurement(ours, peer, not any(r.differences for r in rounds), self.notes(rounds))

    def round(self, workplace: Workplace, number: int) -> Round:
        """Both once; who goes first alternates."""
        ours = child(workplace, "gpt2exp", self.our_command(workplace, number))
        upstream = child(workplace, "upstream", [sys.executable, *self.upstream_command(self.steps)])
        outputs = {c.name: c.run() for c in ((ours, upstream) if number % 2 == 0 else (upstream, ours))}
        run = workplace.folder / f"run{number}"
        ours_seconds = [row["data"] + row["update"] for row in rundir.read_rows(run, "timing") if "update" in row]
        upstream_seconds = [float(text) / 1000 for text in _MILLISECONDS.findall(outputs["upstream"])]
        comparison = Comparison(upstream_digits(outputs["upstream"]), our_digits(run))
        times = tuple(times[WARM_UP_STEPS:] for times in (ours_seconds, upstream_seconds))
        different = comparison.differences if comparison.keys else ["nothing was printed"]
        return Round((times[0], times[1]), different)

    def our_command(self, workplace: Workplace, number: int) -> list[str]:
        """Ours for one round."""
        fixed = [
            "preset=upstream_parity",
            f"model.path={UPSTREAM.file}",
            "data.train=train_*.bin",
            "data.val=val_*.bin",
            "evaluation.every=null",
            f"schedule.num_steps={self.steps}",
            f"schedule.tokens_per_step={self.tokens_per_step}",
            f"hydra.run.dir=run{number}",
            f"hardware.threads={workplace.threads}",
        ]
        return [sys.executable, "-m", "gpt2exp", *fixed, *self.our_overrides]

    def notes(self, rounds: list[Round]) -> tuple[str, ...]:
        """Fastest steps, which other load on the machine disturbs least, and what was equal."""
        ours, peer = (min(min(steps) for steps in side) for side in zip(*[r.times for r in rounds], strict=True))
        different = [text for r in rounds for text in r.differences]
        return (
            f"{self.tokens_per_step} tokens a step; a round is a process each, the median of its "
            f"{self.steps - WARM_UP_STEPS} steps after {WARM_UP_STEPS} to warm up",
            f"fastest step: ours {seconds(ours)}, upstream {seconds(peer)}, ratio {ours / peer:.3f}",
            f"NOT equal: {different[0]}" if different else "printed losses, norms and rates equal in all rounds",
        )


@dataclass(frozen=True)
class Round:
    """Seconds of the counted steps of ours and upstream's, and the printed numbers that differ."""

    times: tuple[list[float], list[float]]
    differences: list[str]


def child(workplace: Workplace, name: str, command: list[str]) -> Child:
    """A process in the common folder; its threads wait as they would without `verify`'s setting."""
    environment = workplace.environment
    if "OMP_WAIT_POLICY" not in os.environ:
        del environment["OMP_WAIT_POLICY"]
    return Child(name, command, workplace.folder, environment, workplace.folder / f"{name}.log")


def shortened(loop: Loop, settings: Settings) -> Loop:
    """Fewer rounds and steps with --quick."""
    return replace(loop, steps=6, rounds=2) if settings.quick else loop
