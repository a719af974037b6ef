"""The reference GPT against upstream's file, against transformers, and against plain NumPy."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from gpt2exp.config import ModelConfig, ModelSource
from gpt2exp.models import reference, upstream
from gpt2exp.models.build import build

SHAPES = [
    ({"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 8, "vocab_size": 11}, 1, 8),
    ({"n_layer": 2, "n_head": 4, "n_embd": 64, "block_size": 64, "vocab_size": 256}, 3, 64),
    ({"n_layer": 3, "n_head": 2, "n_embd": 48, "block_size": 40, "vocab_size": 97}, 2, 17),
    ({"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 128, "vocab_size": 256}, 4, 128),
    ({"n_layer": 2, "n_head": 3, "n_embd": 24, "block_size": 32, "vocab_size": 50}, 4, 1),
]
LLMC = ModelSource.llmc


def tokens(vocab_size, B, T, seed=0):
    """Inputs and targets (B, T); a few targets are -1, which the loss leaves out."""
    generator = torch.Generator().manual_seed(seed)
    idx_BT = torch.randint(vocab_size, (B, T), generator=generator)
    targets_BT = torch.randint(vocab_size, (B, T), generator=generator)
    targets_BT[torch.rand(B, T, generator=generator) < 0.1] = -1
    targets_BT[0, 0] = 1
    return idx_BT, targets_BT


def roughen(gpt, scale, seed=7):
    """Move every weight away from the initialisation: biases too, and attention that is not uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in gpt.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += (scale * noise).to(parameter.dtype)
    return gpt


def gradients(gpt, loss):
    gpt.zero_grad(set_to_none=True)
    loss.backward()
    return {name: parameter.grad for name, parameter in gpt.named_parameters()}


def error(found, expected):
    """Largest difference relative to the largest value."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


def assert_equal_numerics(ours, theirs, idx_BT, targets_BT, tolerance):
    logits, loss = ours(idx_BT, targets_BT)
    their_logits, their_loss = theirs(idx_BT, targets_BT)
    assert error(logits, their_logits) <= tolerance
    assert error(loss, their_loss) <= tolerance
    found, expected = gradients(ours, loss), gradients(theirs, their_loss)
    assert found.keys() == expected.keys()
    largest = max(gradient.abs().max() for gradient in expected.values())
    for name in expected:
        assert ((found[name] - expected[name]).abs().max() / largest).item() <= tolerance, name


def weights(gpt):
    return {name: parameter.detach().clone() for name, parameter in gpt.named_parameters()}


def same_bits(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.upstream
@pytest.mark.parametrize(("shape", "B", "T"), SHAPES)
def test_initial_weights_are_upstreams_bit_for_bit_at_every_seed(model_config, upstream_source, shape, B, T):
    model = model_config(**shape)
    seen = {}
    for seed in (42, 1, 2, 1):
        ours = weights(build(model, seed, None))
        assert same_bits(ours, weights(build(replace(model, source=LLMC), seed, upstream_source)))
        assert same_bits(ours, seen.setdefault(seed, ours))
    assert not same_bits(seen[1], seen[2])
    untouched = weights(upstream.build(replace(model, source=LLMC), upstream_source))
    assert same_bits(seen[42], untouched)


@pytest.mark.upstream
@pytest.mark.slow
def test_initial_weights_of_gpt2_are_upstreams_bit_for_bit(gpt2, upstream_source):
    ours = build(replace(gpt2, source=ModelSource.reference), 1337, None)
    theirs = build(gpt2, 1337, upstream_source)
    assert same_bits(dict(ours.named_parameters()), dict(theirs.named_parameters()))


def test_the_constructor_alone_gives_seed_42(model_config):
    model = model_config()
    assert same_bits(weights(reference.GPT(model)), weights(build(model, 42, None)))


@pytest.mark.upstream
@pytest.mark.parametrize("scale", [0.0, 0.05])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("shape", "B", "T"), SHAPES)
def test_logits_loss_and_gradients_are_upstreams(model_config, upstream_source, shape, B, T, dtype, tolerance, scale):
    model = model_config(**shape)
    ours = roughen(build(model, 3, None).to(dtype), scale)
    theirs = roughen(build(replace(model, source=LLMC), 3, upstream_source).to(dtype), scale)
    assert same_bits(weights(ours), weights(theirs))
    assert_equal_numerics(ours, theirs, *tokens(model.vocab_size, B, T), tolerance)


@pytest.mark.upstream
def test_inference_and_loss_only_forms_are_upstreams(model_config, upstream_source):
    model = model_config()
    ours = build(model, 3, None).double()
    theirs = build(replace(model, source=LLMC), 3, upstream_source).double()
    idx_BT, targets_BT = tokens(model.vocab_size, 2, 9)
    logits, loss = ours(idx_BT)
    assert loss is None
    assert logits.shape == (2, 1, model.vocab_size)
    assert error(logits, theirs(idx_BT)[0]) <= 1e-12
    logits, loss = ours(idx_BT, targets_BT, return_logits=False)
    assert logits is None
    assert error(loss, theirs(idx_BT, targets_BT, return_logits=False)[1]) <= 1e-12


@pytest.mark.upstream
def test_weights_move_between_reference_and_upstream(model_config, upstream_source):
    """The state dicts differ in upstream's causal-mask buffers only."""
    model = model_config()
    ours, theirs = build(model, 5, None), build(replace(model, source=LLMC), 6, upstream_source)
    missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert missing == []
    assert unexpected == [f"transformer.h.{block}.attn.bias" for block in range(model.n_layer)]
    assert same_bits(weights(ours), weights(theirs))


@pytest.fixture(scope="module")
def transformers_gpt2():
    """Makes transformers' GPT-2 with the weights of one of ours, in float64."""
    transformers = pytest.importorskip("transformers")

    def make(model, ours):
        config = transformers.GPT2Config(
            vocab_size=model.vocab_size,
            n_positions=model.block_size,
            n_embd=model.n_embd,
            n_layer=model.n_layer,
            n_head=model.n_head,
            activation_function="gelu_new",
            bos_token_id=0,
            eos_token_id=0,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            attn_implementation="eager",
        )
        theirs = transformers.GPT2LMHeadModel(config).double()
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                parameter.copy_(conv1d(name, ours.get_parameter(name)))
        return theirs

    return make


def conv1d(name, tensor):
    """transformers keeps the blocks' linear weights as (inputs, outputs); ours are (outputs, inputs)."""
    return tensor.T if ".h." in name and tensor.dim() == 2 else tensor


@pytest.mark.parametrize(("shape", "B", "T"), SHAPES[:3])
def test_logits_loss_and_gradients_are_transformers(model_config, transformers_gpt2, shape, B, T):
    model = model_config(**shape)
    ours = roughen(build(model, 3, None).double(), 0.05)
    theirs = transformers_gpt2(model, ours)
    idx_BT, _ = tokens(model.vocab_size, B, T)
    output = theirs(idx_BT, labels=idx_BT)
    their_logits = output.logits[:, :-1]
    # transformers rounds the logits to float32 before its own loss.
    their_loss = F.cross_entropy(their_logits.flatten(0, 1), idx_BT[:, 1:].flatten())
    logits, loss = ours(idx_BT[:, :-1], idx_BT[:, 1:])
    assert error(logits, their_logits) <= 1e-12
    assert error(loss, their_loss) <= 1e-12
    assert error(loss, output.loss) <= 1e-6
    found, expected = gradients(ours, loss), gradients(theirs, their_loss)
    assert found.keys() == expected.keys()
    for name in found:
        assert error(conv1d(name, found[name]), expected[name]) <= 1e-11, name


def numpy_loss(model, weights, idx_BT, targets_BT):
    """Mean cross-entropy of the bias-free GPT, in plain NumPy."""
    T = idx_BT.shape[1]
    heads, width = model.n_head, model.n_embd // model.n_head

    def norm(x, scale):
        centred = x - x.mean(-1, keepdims=True)
        return scale * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    def softmax(x):
        powers = np.exp(x - x.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)

    def attend(x, block):
        q, k, v = np.split(x @ weights[f"{block}.attn.c_attn.weight"].T, 3, axis=-1)
        out = np.zeros_like(x)
        for head in range(heads):
            mine = slice(head * width, (head + 1) * width)
            scores = q[..., mine] @ k[..., mine].transpose(0, 2, 1) / np.sqrt(width)
            scores[:, np.triu(np.ones((T, T), bool), 1)] = -np.inf
            out[..., mine] = softmax(scores) @ v[..., mine]
        return out @ weights[f"{block}.attn.c_proj.weight"].T

    def mlp(x, block):
        hidden = x @ weights[f"{block}.mlp.c_fc.weight"].T
        inner = np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)
        return (0.5 * hidden * (1 + np.tanh(inner))) @ weights[f"{block}.mlp.c_proj.weight"].T

    wte = weights["transformer.wte.weight"]
    x = wte[idx_BT] + weights["transformer.wpe.weight"][:T]
    for number in range(model.n_layer):
        block = f"transformer.h.{number}"
        x = x + attend(norm(x, weights[f"{block}.ln_1.weight"]), block)
        x = x + mlp(norm(x, weights[f"{block}.ln_2.weight"]), block)
    probabilities = softmax(norm(x, weights["transformer.ln_f.weight"]) @ wte.T)
    kept = targets_BT != -1
    chosen = np.take_along_axis(probabilities, np.where(kept, targets_BT, 0)[..., None], -1)[..., 0]
    return -np.log(chosen[kept]).mean()


@pytest.mark.parametrize(("shape", "B", "T"), SHAPES[:3])
def test_without_biases_the_loss_and_its_slope_are_those_of_plain_numpy(model_config, shape, B, T):
    model = model_config(**shape, bias=False)
    gpt = roughen(build(model, 3, None).double(), 0.05)
    idx_BT, targets_BT = tokens(model.vocab_size, B, T)
    _, loss = gpt(idx_BT, targets_BT)
    inputs = idx_BT.numpy(), targets_BT.numpy()
    plain = {name: tensor.numpy() for name, tensor in weights(gpt).items()}
    assert loss.item() == pytest.approx(numpy_loss(model, plain, *inputs), rel=1e-13)

    generator = np.random.default_rng(0)
    direction = {name: generator.standard_normal(tensor.shape) for name, tensor in plain.items()}
    found = sum((g.numpy() * direction[name]).sum() for name, g in gradients(gpt, loss).items())
    step = 1e-5
    ahead, behind = (
        numpy_loss(model, {name: plain[name] + sign * step * direction[name] for name in plain}, *inputs)
        for sign in (1, -1)
    )
    assert found == pytest.approx((ahead - behind) / (2 * step), rel=1e-6)


def test_without_biases_there_are_none(model_config):
    names = [name for name, _ in build(model_config(bias=False), 42, None).named_parameters()]
    assert not any(name.endswith("bias") for name in names)
    assert len(names) == 2 + 2 * 6 + 1


def test_the_initialisation_has_the_widths_of_gpt2(model_config):
    model = model_config(n_layer=8, n_embd=256, vocab_size=2000)
    gpt = build(model, 9, None)
    for name, parameter in gpt.named_parameters():
        if parameter.dim() == 1:
            assert torch.equal(parameter, torch.full_like(parameter, float("ln_" in name and "weight" in name)))
        else:
            expected = 0.02 / 4 if name.endswith("c_proj.weight") else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.02), name


def reload(gpt):
    gpt.load_state_dict({name: tensor + 1 for name, tensor in gpt.state_dict().items()})


@pytest.mark.parametrize("change", [torch.nn.Module.double, torch.nn.Module.bfloat16, reload])
def test_the_head_stays_tied(model_config, change):
    gpt = build(model_config(), 42, None)
    change(gpt)
    assert gpt.lm_head.weight is gpt.transformer.wte.weight
    names = [name for name, _ in gpt.named_parameters()]
    assert names[0] == "transformer.wte.weight"
    assert "lm_head.weight" not in names


@pytest.mark.upstream
def test_upstreams_head_stays_tied_in_float64(model_config, upstream_source):
    gpt = build(model_config(source=LLMC), 42, upstream_source).double()
    assert gpt.lm_head.weight is gpt.transformer.wte.weight


def generator_states():
    return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())


def test_building_leaves_every_global_generator_as_it_was(model_config):
    before = generator_states()
    reference.GPT(model_config())
    build(model_config(), 7, None)
    assert generator_states() == before


@pytest.mark.upstream
def test_building_upstream_leaves_every_global_generator_as_it_was(model_config, upstream_source):
    before = generator_states()
    build(model_config(source=LLMC), 7, upstream_source)
    assert generator_states() == before


def test_the_global_generator_does_not_reach_the_weights(model_config):
    torch.manual_seed(1)
    first = weights(build(model_config(), 7, None))
    torch.manual_seed(2)
    assert same_bits(first, weights(build(model_config(), 7, None)))


def test_training_draws_no_random_numbers(model_config):
    gpt = build(model_config(), 7, None)
    before, own = generator_states(), gpt.init_rng.get_state()
    _, loss = gpt(*tokens(256, 2, 16))
    loss.backward()
    assert generator_states() == before
    assert torch.equal(gpt.init_rng.get_state(), own)


def test_a_hook_on_c_attn_sees_the_packed_projection_of_every_block(model_config):
    gpt = build(model_config(), 42, None)
    seen = []
    for block in gpt.transformer.h:
        block.attn.c_attn.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    idx_BT, targets_BT = tokens(256, 2, 16)
    gpt(idx_BT, targets_BT)
    assert seen == [(2, 16, 3 * 64)] * 2


def test_the_future_does_not_reach_the_past(model_config):
    gpt = roughen(build(model_config(), 42, None).double(), 0.05)
    idx_BT, targets_BT = tokens(256, 1, 20)
    changed_BT = idx_BT.clone()
    changed_BT[0, 12] = (changed_BT[0, 12] + 1) % 256
    logits, other = gpt(idx_BT, targets_BT)[0], gpt(changed_BT, targets_BT)[0]
    assert torch.allclose(logits[:, :12], other[:, :12], rtol=0, atol=1e-13)
    assert error(logits[:, 12:], other[:, 12:]) > 1e-3


def test_the_loss_is_the_mean_over_the_targets_kept(model_config):
    gpt = build(model_config(), 42, None).double()
    idx_BT, targets_BT = tokens(256, 2, 16)
    logits, loss = gpt(idx_BT, targets_BT)
    kept = targets_BT != -1
    assert kept.sum() < targets_BT.numel()
    assert loss.item() == pytest.approx(F.cross_entropy(logits[kept], targets_BT[kept]).item(), rel=1e-14)


def training_digest(**shape):
    """SHA256 of the loss and all gradients of one batch, bit for bit."""
    model = ModelConfig(label="digest", source=ModelSource.reference, **shape)
    gpt = roughen(build(model, 3, None), 0.05)
    _, loss = gpt(*tokens(model.vocab_size, 4, 64), return_logits=False)
    digest = hashlib.sha256(loss.detach().numpy().tobytes())
    for gradient in gradients(gpt, loss).values():
        digest.update(gradient.numpy().tobytes())
    return digest.hexdigest()


def test_the_same_inputs_give_the_same_bits_again_and_in_another_process():
    shape = SHAPES[1][0]
    here = training_digest(**shape)
    assert training_digest(**shape) == here
    program = (
        f"import sys, torch; torch.set_num_threads({torch.get_num_threads()})\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from test_reference import training_digest\n"
        f"print(training_digest(**{shape!r}))"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == here
