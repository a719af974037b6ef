"""The statements around the model's: gradients, their accumulation, logit maxima, the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpt2exp.config import ModelConfig
from gpt2exp.engines.base import Array
from gpt2exp.engines.sql.arrays import Columns
from gpt2exp.engines.sql.model import forward, objective, scores
from gpt2exp.engines.sql.statement import Statement, columns, double, equal, statement, with_tables
from gpt2exp.engines.sql.tables import Table
from gpt2exp.engines.sql.update import Step
from gpt2exp.optim.qk_clip import MaxLogit


def gradients(model: ModelConfig, tables: Sequence[Table]) -> list[Step]:
    """The gradient of the loss for each table of weights; they share one backward pass."""
    loss = objective(model)
    return [
        Step(Statement(table.grad, "gradient of the loss", with_tables(loss, gradient(table))), table.dims)
        for table in tables
    ]


def gradient(table: Table, column: str = "value") -> str:
    """What the gradient library understands; a weight that no token of the batch reaches has gradient 0."""
    return f"SELECT {table.keys}, COALESCE(grad(loss, w), 0e0) AS {column}\nFROM {table.name}"


def accumulate(table: Table, count: int, first: bool) -> Step:
    """A micro-batch's share of the mean gradient."""
    share = f"n.g / {double(count)}"
    total = share if first else f"g.g + {share}"
    return Step(
        statement(
            table.grad,
            "mean gradient, as far as it is known",
            f"""
            SELECT {columns("n", table.dims)}, {total} AS g
            FROM {table.part} n
            JOIN {table.grad} g ON {equal("g", "n", table.dims)}
            """,
        ),
        table.dims,
    )


def largest_logits(model: ModelConfig, definition: MaxLogit) -> tuple[list[Statement], str]:
    """The largest logit of each head: the statements up to the last scores, and the query over them."""
    before, kept = list(forward(model)), "scores"
    if definition is MaxLogit.signed:
        kept = "all_scores"
        for layer in range(model.n_layer):
            place = next(i for i, s in enumerate(before) if s.name == f"h{layer}_scores")
            before.insert(place, scores(model, layer, kept, causal=False))
    last = next(i for i, s in enumerate(before) if s.name == f"h{model.n_layer - 1}_{kept}")
    value = "abs(x)" if definition is MaxLogit.causal_absolute else "x"
    parts = "\nUNION ALL\n".join(
        f"SELECT {layer} AS layer, h, MAX({value}) AS x FROM h{layer}_{kept} GROUP BY h"
        for layer in range(model.n_layer)
    )
    return before[: last + 1], f"SELECT * FROM (\n{parts}\n)\nORDER BY layer, h"


def by_head(maxima_LH: Array) -> Columns:
    """The columns of `qk_max`."""
    layer, head = np.indices(maxima_LH.shape, dtype=np.int32)
    return {"layer": layer.reshape(-1), "h": head.reshape(-1), "x": maxima_LH.reshape(-1)}


def schedule(scalars: Mapping[str, Mapping[str, float]]) -> Columns:
    """The columns of `schedule`: a row a parameter group; 0 where a group's rule has no such scalar."""
    names = dict.fromkeys(name for values in scalars.values() for name in values)
    found: Columns = {"owner": np.array(list(scalars))}
    for name in names:
        found[name] = np.array([values.get(name, 0.0) for values in scalars.values()])
    return found
