"""The SQL tables as labelled arrays (`xarray.Dataset`): a variable a table, a dimension a key, bit for bit."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt2exp.config import ModelConfig
from gpt2exp.engines.base import Array
from gpt2exp.engines.sql.arrays import to_column, to_tensors
from gpt2exp.engines.sql.tables import Table, tables
from gpt2exp.errors import ConfigError, RefusedError
from gpt2exp.models.inventory import parameters

if TYPE_CHECKING:
    import xarray


def to_dataset(weights: Mapping[str, Array], model: ModelConfig) -> xarray.Dataset:
    """Copies of the weights: float64 variables named as the SQL tables, int32 coordinates from 0 as their keys.

    `weights` have upstream's names and shapes; the tied output head is `wte`, once.

    Raises:
        RefusedError: xarray is not installed.
    """
    sizes: dict[str, int] = {}
    variables = {}
    for table in tables(model):
        sizes.update(table.sizes)
        variables[table.name] = (table.dims, to_column(table, weights).reshape(tuple(table.sizes.values())))
    keys = {name: np.arange(size, dtype=np.int32) for name, size in sizes.items()}
    dataset: xarray.Dataset = library().Dataset(variables, keys)
    return dataset


def from_dataset(dataset: xarray.Dataset, model: ModelConfig) -> dict[str, Array]:
    """Copies of the weights by upstream's names, in the model's parameter order.

    The labels say which value is which: axes may be in another order, and so may the keys along them.

    Raises:
        ConfigError: naming every table that is missing, foreign, or has another dtype, dimensions or keys.
    """
    all_tables = tables(model)
    problems = list(differences(dataset, all_tables))
    if problems:
        raise ConfigError(problems)
    found: dict[str, Array] = {}
    for table in all_tables:
        ordered = dataset[table.name].sortby(list(table.dims)).transpose(*table.dims)
        found.update(to_tensors(table, ordered.to_numpy().reshape(-1)))
    return {parameter.name: found[parameter.name] for parameter in parameters(model)}


def differences(dataset: xarray.Dataset, expected: Sequence[Table]) -> Iterator[str]:
    """A line for each variable, and each dimension's keys, that the tables do not have in that form."""
    names = [table.name for table in expected]
    yield from (f"table {name}: not in this model" for name in dataset.data_vars if name not in names)
    sizes: dict[str, int] = {}
    for table in expected:
        if table.name not in dataset.data_vars:
            yield f"table {table.name}: missing"
            continue
        array = dataset[table.name]
        if (array.dtype, dict(array.sizes)) != (np.dtype(np.float64), table.sizes):
            yield f"table {table.name}: found {form(array.dtype, array.sizes)}, expected {form('float64', table.sizes)}"
            continue
        sizes.update(table.sizes)
    for name, size in sizes.items():
        if not np.array_equal(np.sort(dataset[name].to_numpy()), np.arange(size)):
            yield f"dimension {name}: the keys are not 0 to {size - 1}, each once"


def form(dtype: object, sizes: Mapping[Any, int]) -> str:
    """`float64 (token 65, e 16)`."""
    return f"{dtype} ({', '.join(f'{name} {size}' for name, size in sizes.items())})"


def library() -> Any:
    """The xarray package.

    Raises:
        RefusedError: it is not installed.
    """
    try:
        return importlib.import_module("xarray")
    except ImportError as error:
        raise RefusedError(f"labelled arrays need xarray ({error}); pip install 'gpt2exp[xarray]'") from None
