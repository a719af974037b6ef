"""The pair ledger: what must be equal within a seed before anything is subtracted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpt2exp.identity import differing, without
from gpt2exp.report.findings import PairCheck
from gpt2exp.report.records import INITIAL_WEIGHTS, record_problems, shown
from gpt2exp.report.runs import Run

LEDGER = (INITIAL_WEIGHTS, "training.data.corpus", "training.data.order_digest")
"""What makes two runs a pair: no override lets these differ within a seed."""
OPTIMIZER_EXECUTORS = ("orthogonalizer",)
"""Execution that belongs to the optimizer, and so differs between arms that use it and arms that do not."""


class _Problem(NamedTuple):
    """`key` is None for what no override can allow."""

    key: str | None
    text: str


def check_pairs(runs: Sequence[Run], allowed: Collection[str] = ()) -> tuple[PairCheck, ...]:
    """One check a seed, in the order in which seeds appear; each run is held against the first of its seed.

    Equal must be: initial weights, data order, everything in the protocol digest, and execution but for the
    optimizer's own executors. Records that were edited and resumes that were not exact are problems too.

    Args:
        runs: of any number of seeds and arms.
        allowed: full keys (`execution.threads`) that may differ all the same; those of the ledger never may.
    """
    seeds = dict.fromkeys(run.seed for run in runs)
    return tuple(_check(seed, [run for run in runs if run.seed == seed], allowed) for seed in seeds)


def _check(seed: int, runs: Sequence[Run], allowed: Collection[str]) -> PairCheck:
    first, *others = runs
    problems = [*_repeated(runs)]
    for run in runs:
        problems += [_Problem(None, f"{run.arm}: {text}") for text in record_problems(run)]
        problems += _inexact(run)
    for run in others:
        problems += _between(first, run)
    return PairCheck(
        seed=seed,
        arms=tuple(run.arm for run in runs),
        initial_weights=_common([run.record[INITIAL_WEIGHTS] for run in runs]),
        order=_common([run.record["training"]["data"].get("order_digest") for run in runs]),
        problems=tuple(problem.text for problem in problems if problem.key is None or problem.key not in allowed),
    )


def _repeated(runs: Sequence[Run]) -> Iterator[_Problem]:
    for arm, count in Counter(run.arm for run in runs).items():
        if count > 1:
            yield _Problem(None, f"arm {arm} is there {count} times")


def _inexact(run: Run) -> Iterator[_Problem]:
    for changes in run.record.get("inexact", ()):
        for key, (then, now) in changes.items():
            text = f"execution.{key}: {shown(then)}, then {shown(now)} in {run.arm}, which was resumed inexactly"
            yield _Problem(f"execution.{key}", text)


def _between(a: Run, b: Run) -> Iterator[_Problem]:
    found = [
        *differing({INITIAL_WEIGHTS: a.record[INITIAL_WEIGHTS]}, {INITIAL_WEIGHTS: b.record[INITIAL_WEIGHTS]}),
        *differing(_comparable(a.record), _comparable(b.record)),
    ]
    for key, x, y in found:
        text = f"{key}: {shown(x)} in {a.arm}, {shown(y)} in {b.arm}"
        yield _Problem(None if key in LEDGER else key, text)
    stored = [run.record["digests"].get("protocol") for run in (a, b)]
    if stored[0] != stored[1] and not any(key.startswith(("training.", "measurement.")) for key, _, _ in found):
        yield _Problem(None, f"digests.protocol: {stored[0]} in {a.arm}, {stored[1]} in {b.arm}")


def _comparable(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "training": without(record["training"], "seed", "optimizer"),
        "measurement": record["measurement"],
        "execution": without(record["execution"], *OPTIMIZER_EXECUTORS),
    }


def _common(values: Sequence[str | None]) -> str | None:
    return values[0] if len(set(values)) == 1 else None
