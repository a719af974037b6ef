"""What the reader of a report must know of its runs before its numbers: one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpt2exp.report.pooling import describe, names_of, noted
from gpt2exp.report.records import shown
from gpt2exp.report.runs import Run
from gpt2exp.report.sentences import counted


def cautions(runs: Sequence[Run]) -> tuple[str, ...]:
    """Inexact resumes, gated updates, repeated tokens, several hosts, and execution that differs between runs."""
    return (*_inexact(runs), *_gated(runs), *_repeats(runs), *_hosts(runs), *_execution(runs))


def _inexact(runs: Sequence[Run]) -> Iterator[str]:
    for run, name in zip(runs, names_of(runs), strict=True):
        changed = [
            f"execution.{key} {shown(then)}, then {shown(now)}"
            for changes in run.record.get("inexact", ())
            for key, (then, now) in changes.items()
        ]
        if changed:
            yield f"{name} was resumed inexactly ({'; '.join(changed)}): its bits are not those of an unbroken run."


def _gated(runs: Sequence[Run]) -> Iterator[str]:
    for run, name in zip(runs, names_of(runs), strict=True):
        gated = sum(bool(row.get("gated")) for row in run.metrics)
        if gated:
            yield f"{name}: {gated} of {counted(run.step, 'update')} gated (something not finite): no weight moved."


def _repeats(runs: Sequence[Run]) -> Iterator[str]:
    repeating = sum(bool(run.record["training"]["data"].get("allow_repeat")) for run in runs)
    if repeating:
        yield f"data.allow_repeat=true in {counted(repeating, 'run')}: training may have seen tokens more than once."


def _hosts(runs: Sequence[Run]) -> Iterator[str]:
    hosts: dict[str, set[str]] = {}
    for run, name in zip(runs, names_of(runs), strict=True):
        attempts = run.record.get("attempts", ())
        for host in [run.record.get("host"), *(attempt.get("host") for attempt in attempts)]:
            if host:
                hosts.setdefault(host, set()).add(name)
    if len(hosts) > 1:
        listed = "; ".join(f"{host}: {', '.join(sorted(names))}" for host, names in sorted(hosts.items()))
        yield f"Made on {len(hosts)} hosts ({listed}): compare times with care."


def _execution(runs: Sequence[Run]) -> Iterator[str]:
    for difference in noted(runs):
        yield f"Runs differ in {describe(difference)}; that alone does not keep them from being pooled."
