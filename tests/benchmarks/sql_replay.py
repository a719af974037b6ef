"""A training step in SQL with captured plans replayed, against the same with the statements rewritten every step."""

from __future__ import annotations

from dataclasses import replace

from benchmarking import Benchmark, Measurement, Reach, Settings, alternate

from gpt2exp.engines.sql.hosts import check_libraries
from gpt2exp.engines.sql.replay import CAPTURED_AT
from gpt2exp.sql_reports.bench_child import Specification, state_error

BATCH, CONTEXT, LAYERS = 4, 16, 1
"""nanogpt_mini."""


class Stepping:
    """An engine, and what it trains on next."""

    def __init__(self, spec: Specification, replay: bool) -> None:
        self.engine, self.windows, self.step = spec.build(replay), spec.windows(), 0

    def __call__(self) -> None:
        """One update."""
        self.step += 1
        self.engine.update(self.step, self.windows[self.step - 1], 1.0)


def measure(host: str, settings: Settings) -> Measurement:
    """Update both in turn, after the updates that capture and plan; states are compared to the bit at the end."""
    check_libraries()
    rounds, warm_up = settings.choose(15, 5), CAPTURED_AT + 1
    spec = Specification(host, ("optimizer=nanogpt_adamw",), BATCH, CONTEXT, LAYERS, warm_up + 1 + rounds, 1)
    replaying, rewriting = Stepping(spec, True), Stepping(spec, False)
    for _ in range(warm_up):
        replaying()
        rewriting()
    taken = alternate(replaying, rewriting, rounds)
    same = state_error(replaying.engine.state(), rewriting.engine.state()) == 0
    for side in (replaying, rewriting):
        side.engine.close()
    note = f"one thread; after {replaying.step} updates the states are {'equal' if same else 'NOT equal'} to the bit"
    return replace(taken, same=same, notes=(note,))


def row(host: str) -> Benchmark:
    """The row of a host."""
    return Benchmark(
        f"a step of nanogpt_mini with AdamW on {host}, batch {BATCH}, captured plans replayed",
        "the same statements rewritten every step",
        Reach(1.8, speed_up=True),
        lambda settings: measure(host, settings),
    )
