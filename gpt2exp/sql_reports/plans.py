"""Sizes of what a database does: operators of its plans, and the most rows that one of them puts out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpt2exp.engines.sql.hosts import library
from gpt2exp.engines.sql.replay import Gradients
from gpt2exp.engines.sql.statement import Statement, with_tables
from gpt2exp.engines.sql.update import Step


@dataclass(frozen=True)
class PlanSize:
    """Operators of one or several plans, and the most rows that one operator put out."""

    operators: int = 0
    largest_rows: int = 0

    def __add__(self, other: PlanSize) -> PlanSize:
        return PlanSize(self.operators + other.operators, max(self.largest_rows, other.largest_rows))


@dataclass
class Counting:
    """A backend of the gradient library that measures each step of a program before it is run."""

    backend: Any
    measure: Callable[[bytes], PlanSize]
    sizes: list[PlanSize] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def materialize(self, name: str, plan: bytes) -> None:
        """Run a step."""
        self.sizes.append(self.measure(plan))
        self.backend.materialize(name, plan)


def query_size(host: Any, select: str, before: Sequence[Statement]) -> PlanSize:
    """Run a query as the host's `fetch` does, and measure it. The host is of no use afterwards."""
    if host.name == "duckdb":
        return duckdb_size(host, with_tables(before, select))
    size = PlanSize()
    for made in before:
        size += datafusion_size(host, host.context.sql(made.sql))
        host.store(Step(made, ()))
    return size + datafusion_size(host, host.context.sql(select))


def gradient_size(host: Any, reads: Sequence[str], steps: Sequence[Step]) -> PlanSize:
    """Run a program of gradients of the tables `reads` once, and measure every step. The host is of no use afterwards.

    Raises:
        RefusedError: the statements cannot be differentiated.
    """
    sizes = counted(host).sizes
    Gradients(host, reads, enabled=False).run(steps)
    return sum(sizes, PlanSize())


def counted(host: Any) -> Counting:
    """From here on the host's gradient programs are measured. Timings of it mean nothing anymore."""
    measure = duckdb_plan_size if host.name == "duckdb" else datafusion_plan_size
    counting = Counting(host.backend, lambda plan: measure(host, plan))
    host.backend = counting
    return counting


def duckdb_plan_size(host: Any, plan: bytes) -> PlanSize:
    """A step of a program on DuckDB."""
    return duckdb_size(host, library("ddxdb._ddxdb").to_sql(plan, "duckdb"))


def duckdb_size(host: Any, sql: str) -> PlanSize:
    """What DuckDB's profile of a query says."""
    ((_, profile),) = host.connection.execute(f"EXPLAIN (ANALYZE, FORMAT json) {sql}").fetchall()
    nodes = [node for node in _duckdb_nodes(json.loads(profile)) if node.get("operator_type") != "EXPLAIN_ANALYZE"]
    return _size(node["operator_cardinality"] for node in nodes if "operator_cardinality" in node)


def datafusion_plan_size(host: Any, plan: bytes) -> PlanSize:
    """A step of a program on DataFusion."""
    substrait = library("datafusion.substrait")
    logical = substrait.Consumer.from_substrait_plan(host.context, substrait.Serde.deserialize_bytes(plan))
    return datafusion_size(host, host.context.create_dataframe_from_logical_plan(logical))


def datafusion_size(host: Any, frame: Any) -> PlanSize:
    """What DataFusion's metrics of a plan say after it ran."""
    plan = frame.execution_plan()
    for partition in range(plan.partition_count):
        for _ in host.context.execute(plan, partition):
            pass
    metrics = [operator.metrics() for operator in _datafusion_operators(plan)]
    return _size(0 if found is None else found.output_rows or 0 for found in metrics)


def _size(rows: Iterable[int]) -> PlanSize:
    counts = list(rows)
    return PlanSize(len(counts), max(counts, default=0))


def _duckdb_nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("children", ()):
        yield from _duckdb_nodes(child)


def _datafusion_operators(plan: Any) -> Iterator[Any]:
    yield plan
    for child in plan.children():
        yield from _datafusion_operators(child)
