"""Between upstream's tensors and columns of tables: every bit goes through, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpt2exp.data.windows import Window
from gpt2exp.engines.base import Array
from gpt2exp.engines.sql.tables import Table

Columns = dict[str, np.ndarray[Any, np.dtype[Any]]]


def keys_of(table: Table) -> Columns:
    """One int32 column a dimension, a row a weight, the last dimension fastest."""
    indices = np.indices(tuple(table.sizes.values()), dtype=np.int32)
    return {name: index.reshape(-1) for name, index in zip(table.sizes, indices, strict=True)}


def to_column(table: Table, tensors: Mapping[str, Array]) -> Array:
    """The values of the table's tensors in the order of `keys_of`, float64."""
    parts = [np.asarray(tensors[name], dtype=np.float64).reshape(-1) for name in table.tensors]
    return np.concatenate(parts)


def to_tensors(table: Table, column: Array) -> dict[str, Array]:
    """Copies of the table's tensors by upstream's names."""
    assert column.shape == (table.rows,), f"{table.name}: {column.shape} values for {table.rows} weights"
    parts = np.split(np.asarray(column, dtype=np.float64), len(table.tensors))
    return {name: part.reshape(table.tensor_shape).copy() for name, part in zip(table.tensors, parts, strict=True)}


def batch(window: Window) -> Columns:
    """The rows of a batch: row `b`, position `pos`, token `token`, target `target`."""
    rows, positions = np.indices(window.inputs_NT.shape, dtype=np.int32)
    return {
        "b": rows.reshape(-1),
        "pos": positions.reshape(-1),
        "token": window.inputs_NT.astype(np.int32).reshape(-1),
        "target": window.targets_NT.astype(np.int32).reshape(-1),
    }
