"""Weights as labelled arrays: every bit goes through the tables and the labels, both ways."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from quick import quickly

from gpt2exp.engines.sql.arrays import keys_of, to_column
from gpt2exp.engines.sql.labelled import from_dataset, to_dataset
from gpt2exp.engines.sql.tables import tables
from gpt2exp.errors import ConfigError, RefusedError
from gpt2exp.models.build import build
from gpt2exp.models.inventory import WTE, parameter_count, parameters

pytestmark = pytest.mark.sql

MINI = ("model=nanogpt_mini", "schedule.context_length=16", "data=synthetic")
MODELS = {"bias-free": (), "biases, two layers": ("model.bias=true", "model.n_layer=2", "model.block_size=20")}
SPECIAL = np.array([0x7FF8000000000001, 0xFFF8DEADBEEF0000, 0x8000000000000000, 0x7FF0000000000000, 1], dtype=np.uint64)
"""NaNs with a payload and with a sign, -0.0, infinity, and the smallest number."""


@pytest.fixture
def labelled():
    pytest.importorskip("xarray")


def shape(*overrides):
    return quickly(*MINI, *overrides).model


def random_weights(model):
    generator = np.random.default_rng(7)
    return {p.name: generator.standard_normal(p.shape) for p in parameters(model)}


def bits(weights):
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in weights.items()}


@pytest.mark.parametrize("overrides", MODELS.values(), ids=MODELS)
def test_weights_come_back_bit_for_bit(labelled, overrides):
    model = shape(*overrides)
    weights = random_weights(model)
    found = from_dataset(to_dataset(weights, model), model)
    assert list(found) == list(weights) and bits(found) == bits(weights)


@pytest.mark.parametrize("overrides", MODELS.values(), ids=MODELS)
def test_nan_and_negative_zero_keep_their_bits(labelled, overrides):
    model = shape(*overrides)
    weights = random_weights(model)
    for i, array in enumerate(weights.values()):
        array.reshape(-1)[: len(SPECIAL)] = np.roll(SPECIAL, i).view(np.float64)
    assert bits(from_dataset(to_dataset(weights, model), model)) == bits(weights)


def test_the_weights_of_a_model_in_fp32_keep_their_values(labelled):
    cfg = quickly(*MINI)
    weights = {name: p.detach().numpy() for name, p in build(cfg.model, cfg.seed, None).named_parameters()}
    assert all(array.dtype == np.float32 for array in weights.values())
    found = from_dataset(to_dataset(weights, cfg.model), cfg.model)
    assert bits({name: array.astype(np.float32) for name, array in found.items()}) == bits(weights)


@pytest.mark.parametrize("overrides", MODELS.values(), ids=MODELS)
def test_a_label_finds_the_row_with_the_same_keys(labelled, overrides):
    model = shape(*overrides)
    weights = random_weights(model)
    dataset = to_dataset(weights, model)
    assert list(dataset.data_vars) == [table.name for table in tables(model)]
    assert sum(array.size for array in dataset.data_vars.values()) == parameter_count(model), "the tied head once"
    for table in tables(model):
        keys, column = keys_of(table), to_column(table, weights)
        assert dataset[table.name].dims == table.dims
        for row in (0, table.rows // 3, table.rows - 1):
            labels = {name: int(keys[name][row]) for name in table.dims}
            assert dataset[table.name].sel(labels).item() == column[row]
    assert {str(key.dtype) for key in dataset.coords.values()} == {"int32"}


def test_labels_decide_not_positions(labelled):
    model = shape()
    weights = random_weights(model)
    shuffled = to_dataset(weights, model).isel(e=slice(None, None, -1), token=np.roll(np.arange(65), 5))
    turned = shuffled.transpose("e", "token", "c", "h", ...)
    assert turned["wte"].dims == ("e", "token") and turned["wte"][0, 0] != weights[WTE][0, 0]
    assert bits(from_dataset(turned, model)) == bits(weights)


def test_the_dataset_and_the_weights_share_no_memory(labelled):
    model = shape()
    weights = random_weights(model)
    dataset = to_dataset(weights, model)
    found = from_dataset(dataset, model)
    before = bits(found)
    for array in weights.values():
        array[:] = 0
    assert bits(from_dataset(dataset, model)) == before
    for variable in dataset.data_vars.values():
        variable[:] = 1
    assert bits(found) == before


def test_a_dataset_of_another_model_is_refused_line_by_line(labelled):
    model = shape()
    dataset = to_dataset(random_weights(model), model)
    other = dataset.drop_vars("wpe").assign(extra=dataset["wte"], ln1_w=dataset["ln1_w"].astype(np.float32))
    with pytest.raises(ConfigError) as refused:
        from_dataset(other.isel(token=slice(0, 60)).assign_coords(e=np.arange(16) + 1), model)
    assert refused.value.problems == [
        "table extra: not in this model",
        "table wte: found float64 (token 60, e 16), expected float64 (token 65, e 16)",
        "table wpe: missing",
        "table ln1_w: found float32 (layer 1, e 16), expected float64 (layer 1, e 16)",
        "dimension e: the keys are not 0 to 15, each once",
    ]


def test_a_missing_xarray_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    model = shape()
    with pytest.raises(RefusedError, match=r"pip install 'gpt2exp\[xarray\]'") as refused:
        to_dataset(random_weights(model), model)
    assert refused.value.exit_code == 3 and len(str(refused.value).splitlines()) == 1
