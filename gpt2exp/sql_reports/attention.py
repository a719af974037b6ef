"""Attention and its gradients in a database, checked against torch in float64 and measured."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from gpt2exp.engines.base import Array
from gpt2exp.engines.sql.arrays import Columns
from gpt2exp.engines.sql.hosts import Host, build_host, check_libraries
from gpt2exp.engines.sql.replay import CAPTURED_AT, Gradients
from gpt2exp.engines.sql.statement import Statement, with_tables
from gpt2exp.engines.sql.update import Step
from gpt2exp.errors import RefusedError
from gpt2exp.sql_reports.plans import PlanSize, gradient_size, query_size
from gpt2exp.sql_reports.spellings import CONTROL, KEYS, LOSS, SPELLINGS, Spelling

TOLERANCE = 1e-14
"""Largest difference from torch's float64, as a share of the largest value."""
MAX_ROWS = 50_000_000
"""Rows that the join of queries and keys may have."""
NUMBERS = ("milliseconds", "largest_relative_error", "largest_rows", "operators")
Result = TypeVar("Result")
OUTPUT = "SELECT b, h, i, d, x FROM output ORDER BY b, h, i, d"


class Size(NamedTuple):
    """Batch, heads, positions, and the width of a head."""

    batch: int
    heads: int
    positions: int
    width: int

    @property
    def joined_rows(self) -> int:
        """Rows of the widest join: every query with every key, dimension by dimension."""
        return self.batch * self.heads * self.positions**2 * self.width

    def __str__(self) -> str:
        return "x".join(map(str, self))


@dataclass(frozen=True)
class Row:
    """One measurement. `milliseconds` is the median; numbers are missing where `note` says why.

    `largest_rows` is the most rows that an operator of the plans put out, `operators` how many the plans have.
    """

    host: str
    spelling: str
    run: str
    size: Size
    milliseconds: float | None = None
    largest_relative_error: float | None = None
    largest_rows: int | None = None
    operators: int | None = None
    note: str = ""

    @property
    def failed(self) -> bool:
        """Out of tolerance; a NaN is."""
        error = self.largest_relative_error
        return error is not None and not error <= TOLERANCE

    def columns(self) -> dict[str, object]:
        """As a row of a table."""
        numbers = {name: getattr(self, name) for name in NUMBERS}
        size = dict(zip("BHTD", self.size, strict=True))
        return {"host": self.host, "spelling": self.spelling, "pass": self.run, **size, **numbers, "note": self.note}


def measure(
    hosts: Sequence[str], sizes: Sequence[Size], reps: int, spellings: Mapping[str, Spelling] = SPELLINGS
) -> Iterator[Row]:
    """A forward and a gradient row for each size, spelling and host; one that cannot be planned says why.

    Raises:
        RefusedError: the sql extra is missing, or a database fails at what it had planned and run before.
    """
    check_libraries()
    for size in sizes:
        values = random_values(size)
        for name, spelling in spellings.items():
            expected = reference(values, size.width, name == CONTROL)
            for host in hosts:
                for run in passes(spelling(size.width), reps):
                    yield measured(Row(host, name, run.name, size), run, values, expected)


@dataclass(frozen=True)
class Pass:
    """What is measured: `size` runs it once, on a database of its own; `time` gives milliseconds and results."""

    name: str
    size: Callable[[Host], PlanSize]
    time: Callable[[Host], tuple[float, dict[str, Array]]]


def passes(statements: tuple[Statement, ...], reps: int) -> tuple[Pass, Pass]:
    """The output, and all gradients in one backward pass."""
    steps = gradient_steps(statements)
    return (
        Pass(
            "forward",
            lambda host: query_size(host, OUTPUT, statements),
            lambda host: timed_forward(host, statements, reps),
        ),
        Pass(
            "gradient",
            lambda host: gradient_size(host, tuple(KEYS), steps),
            lambda host: timed_gradients(host, steps, reps),
        ),
    )


def measured(row: Row, run: Pass, values: Mapping[str, Array], expected: Mapping[str, Array]) -> Row:
    """The row with its numbers, or with the reason why there are none.

    Raises:
        RefusedError: the database fails after it ran the pass once.
    """
    with filled(row.host, values) as host:
        try:
            size = run.size(host)
        except RefusedError as refused:
            return replace(row, note=f"skip: {str(refused).partition('; the statement is: ')[0]}")
    with filled(row.host, values) as host:
        milliseconds, found = run.time(host)
    error = float(np.max([relative_error(column, expected[name]) for name, column in found.items()]))
    return replace(row, milliseconds=milliseconds, largest_relative_error=error, largest_rows=size.largest_rows,
                   operators=size.operators)  # fmt: skip


def timed_forward(host: Host, statements: Sequence[Statement], reps: int) -> tuple[float, dict[str, Array]]:
    """Milliseconds, and the output."""
    milliseconds, columns = median_time(lambda: host.fetch(OUTPUT, statements), 1, reps)
    return milliseconds, {"output": columns["x"]}


def timed_gradients(host: Host, steps: Sequence[Step], reps: int) -> tuple[float, dict[str, Array]]:
    """Milliseconds of a replay, and the gradients of all tables, from one backward pass."""
    gradients = Gradients(host, tuple(KEYS), enabled=True)
    milliseconds, (_, found) = median_time(lambda: gradients.run(steps), CAPTURED_AT + 1, reps)
    return milliseconds, dict(zip(KEYS, found, strict=True))


def median_time(run: Callable[[], Result], warmups: int, reps: int) -> tuple[float, Result]:
    """Median milliseconds of `reps` runs after some that do not count, and what the last one gave."""
    for _ in range(warmups):
        result = run()
    seconds = []
    for _ in range(reps):
        started = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - started)
    return 1e3 * statistics.median(seconds), result


def gradient_steps(statements: Sequence[Statement]) -> tuple[Step, ...]:
    """Gradients with respect to q, k and v: they share the loss, so one backward pass serves all."""
    upstream = (*statements, LOSS)
    return tuple(
        Step(Statement(table, f"gradient with respect to {table}", with_tables(upstream, select)), keys)
        for table, keys in KEYS.items()
        for select in [f"SELECT {', '.join(keys)}, grad(loss, x) AS value FROM {table}"]
    )


@contextmanager
def filled(kind: str, values: Mapping[str, Array]) -> Iterator[Host]:
    """A database with the tables q, k and v."""
    host = build_host(kind)
    try:
        for table, array in values.items():
            host.load(table, KEYS[table], columns_of(KEYS[table], array))
        yield host
    finally:
        host.close()


def columns_of(keys: Sequence[str], array: Array) -> Columns:
    """An array as a table: an int32 column an axis, and the value in `x`."""
    indices = np.indices(array.shape, dtype=np.int32)
    return {**{key: index.reshape(-1) for key, index in zip(keys, indices, strict=True)}, "x": array.reshape(-1)}


def random_values(size: Size) -> dict[str, Array]:
    """Standard normal queries, keys and values (B, H, T, D), the same for a size every time."""
    generator = np.random.default_rng(0)
    return {table: generator.standard_normal(size) for table in KEYS}


def reference(values: Mapping[str, Array], width: int, kernel: bool) -> dict[str, Array]:
    """`output` and the gradients of q, k and v from torch in float64, flat."""
    import torch

    q, k, v = (torch.tensor(values[table], dtype=torch.float64, requires_grad=True) for table in KEYS)
    if kernel:
        logits = -(q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1) / (2 * math.sqrt(width))
    else:
        masked = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        logits = (q @ k.transpose(-1, -2) / math.sqrt(width)).masked_fill(masked, -math.inf)
    output = logits.softmax(-1) @ v
    gradients = torch.autograd.grad(0.5 * output.square().sum(), (q, k, v))
    found = {"output": output.detach(), **dict(zip(KEYS, gradients, strict=True))}
    return {name: tensor.numpy().reshape(-1) for name, tensor in found.items()}


def relative_error(found: Array, expected: Array) -> float:
    """Largest difference as a share of the largest value."""
    assert found.shape == expected.shape, f"{found.shape} values for {expected.shape}"
    return float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))
