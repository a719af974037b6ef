from __future__ import annotations

import pytest
import torch

from gpt2exp.config import ModelSource
from gpt2exp.models import inventory, reference, upstream
from gpt2exp.optim.base import TensorInfo
from gpt2exp.optim.param_groups import DecayScope, decays

SHAPES = [
    {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 4, "vocab_size": 5},
    {"n_layer": 2, "n_head": 4, "n_embd": 64, "block_size": 64, "vocab_size": 256},
    {"n_layer": 11, "n_head": 3, "n_embd": 12, "block_size": 7, "vocab_size": 300},
]
GPT2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "vocab_size": 50257}


def on_meta(make):
    with torch.device("meta"):
        return make()


def assert_describes(model, module):
    described = [(parameter.name, parameter.shape) for parameter in inventory.parameters(model)]
    assert described == [(name, tuple(tensor.shape)) for name, tensor in module.named_parameters()]
    entries = {name: entry for name, entry in module.state_dict(keep_vars=True).items() if entry.dim() == 2}
    matrices = inventory.matrices(model)
    assert {m.name: m.shape for m in matrices} == {name: tuple(entry.shape) for name, entry in entries.items()}
    assert all(entries[m.name] is entries[m.stored_in] for m in matrices)
    assert len({id(entry) for entry in entries.values()}) == sum(m.unique for m in matrices)
    assert inventory.parameter_count(model) == sum(tensor.numel() for tensor in module.parameters())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [*SHAPES, GPT2])
def test_the_inventory_is_the_reference_gpts(model_config, shape, bias):
    model = model_config(**shape, bias=bias)
    assert_describes(model, on_meta(lambda: reference.GPT(model)))


@pytest.mark.upstream
@pytest.mark.parametrize("shape", [*SHAPES, GPT2])
def test_the_inventory_is_upstreams(model_config, shape, upstream_source):
    model = model_config(**shape, source=ModelSource.llmc)
    assert_describes(model, on_meta(lambda: upstream.build(model, upstream_source)))


def test_gpt2_has_its_known_size(gpt2):
    assert inventory.parameter_count(gpt2) == 124_439_808
    matrices = inventory.matrices(gpt2)
    assert len(matrices) == 51
    assert len({matrix.stored_in for matrix in matrices}) == 50
    assert sum(matrix.block is not None for matrix in matrices) == 48


def test_the_trace_level_of_gpt2(gpt2):
    traces = inventory.traces(gpt2)
    assert len(traces) == len({trace.name for trace in traces}) == 75
    assert sum(trace.matrix.unique for trace in traces) == 74
    assert [trace.name for trace in traces[:6]] == [
        "L00_W_Q", "L00_W_K", "L00_W_V", "L00_W_O", "L00_W_MLP_IN", "L00_W_MLP_OUT",
    ]  # fmt: skip
    assert [trace.name for trace in traces[-4:]] == ["L11_W_MLP_OUT", "wte", "wpe", "lm_head"]
    assert {trace.shape for trace in traces[:72]} == {(768, 768), (3072, 768), (768, 3072)}


@pytest.mark.parametrize("shape", SHAPES)
def test_traces_cover_every_matrix_exactly_once(model_config, shape):
    model = model_config(**shape)
    rows = {matrix.name: [] for matrix in inventory.matrices(model)}
    for trace in inventory.traces(model):
        rows[trace.matrix.name] += range(trace.start, trace.stop)
    for matrix in inventory.matrices(model):
        assert sorted(rows[matrix.name]) == list(range(matrix.shape[0]))


def test_the_slices_named_q_k_v_make_those_thirds_of_c_attns_output(model_config):
    model = model_config(n_layer=1)
    gpt = reference.GPT(model)
    c_attn = gpt.transformer.h[0].attn.c_attn
    for index, trace in enumerate(inventory.traces(model)[:3]):
        assert (trace.kind, trace.matrix.name) == (f"W_{'QKV'[index]}", "transformer.h.0.attn.c_attn.weight")
        with torch.no_grad():
            c_attn.weight.zero_()[trace.start : trace.stop] = 1.0
            thirds = c_attn(torch.ones(1, 1, model.n_embd)).chunk(3, dim=-1)
        assert [bool(third.any()) for third in thirds] == [part == index for part in range(3)]


def test_owners_agree_with_the_optimizers_own_rules(gpt2):
    upstreams_decay = decays(DecayScope.matrices)
    for parameter in inventory.parameters(gpt2):
        tensor = TensorInfo(parameter.name, parameter.shape)
        assert parameter.adamw_owner == ("adamw decay" if upstreams_decay(tensor) else "adamw no_decay")
        assert parameter.matrix_owner == ("hidden matrix" if tensor.hidden_matrix else "auxiliary")


def test_every_size_of_gpt2(model_config):
    sizes = {
        (24, 16, 1024): 354_823_168,
        (36, 20, 1280): 774_030_080,
        (48, 25, 1600): 1_557_611_200,
    }
    for (n_layer, n_head, n_embd), count in sizes.items():
        model = model_config(n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=1024, vocab_size=50257)
        assert inventory.parameter_count(model) == count


def test_nanogpt_mini_without_biases_has_4416_parameters(model_config):
    mini = model_config(n_layer=1, n_head=4, n_embd=16, block_size=16, vocab_size=65, bias=False)
    assert inventory.parameter_count(mini) == 4_416
