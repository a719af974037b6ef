"""Orthogonalizers against one float64 oracle, and the oracle against the iteration it stands for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2exp.optim.newton_schulz import (
    NS5,
    NSPrecision,
    Polynomial,
    by_eigenvalues,
    lower_product,
    mirrored,
    newton_schulz,
    oracle,
)
from gpt2exp.optim.orthogonalize import Orthogonalizer, OrthogonalizerKind, OrthogonalMap, resolved

SHAPES = [(64, 64), (192, 64), (64, 256), (1, 7), (7, 1), (1, 1)]
RELATIVE = {"fp64": 1e-6, "fp32": 1e-3}
"""Largest error in the result, relative to its spectral norm (about 1): rounding through five quintic steps."""


def matrix(shape, seed=0, decades=0.0):
    """Random, or with singular values spread over `decades`."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if decades:
        u, s, vt = np.linalg.svd(x, full_matrices=False)
        x = (u * np.logspace(0, -decades, len(s))) @ vt
    return x


def iterated(x, steps):
    """The published iteration, in float64 NumPy."""
    a, b, c = NS5
    x = x / max(np.linalg.norm(x), 1e-7)
    if x.shape[0] > x.shape[1]:
        return iterated(x.T, steps).T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@pytest.mark.parametrize("steps", [1, 5, 12])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_oracle_is_the_iteration(shape, steps):
    x = matrix(shape)
    np.testing.assert_allclose(oracle(x, Polynomial.ns5, steps), iterated(x, steps), atol=1e-11)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_polar_oracle_has_unit_singular_values(shape):
    s = np.linalg.svd(oracle(matrix(shape), Polynomial.polar, 5), compute_uv=False)
    np.testing.assert_allclose(s, 1.0, atol=1e-12)


@pytest.mark.parametrize("decades", [0, 3, 6])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", [newton_schulz, by_eigenvalues])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_ns5_meets_the_oracle(way, shape, decades, precision):
    x = matrix(shape, decades=decades)
    dtype = {"fp32": torch.float32, "fp64": torch.float64}[precision]
    found = way(torch.tensor(x, dtype=dtype), Polynomial.ns5, 5).double().numpy()
    np.testing.assert_allclose(found, oracle(x, Polynomial.ns5, 5), atol=RELATIVE[precision])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", [newton_schulz, by_eigenvalues])
def test_polar_meets_the_oracle(way, shape):
    x = matrix(shape, decades=1)
    found = way(torch.tensor(x, dtype=torch.float32), Polynomial.polar, 5).double().numpy()
    np.testing.assert_allclose(found, oracle(x, Polynomial.polar, 5), atol=1e-3)


def test_bf16_is_torchs_own_iteration_to_the_bit():
    from torch.optim._muon import _zeropower_via_newtonschulz

    for shape in SHAPES:
        x = torch.tensor(matrix(shape), dtype=torch.float32)
        assert torch.equal(newton_schulz(x.bfloat16(), Polynomial.ns5, 5), _zeropower_via_newtonschulz(x, NS5, 5, 1e-7))


@pytest.mark.parametrize("way", [newton_schulz, by_eigenvalues])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-12, 1e12, 1e25])
def test_zero_tiny_and_huge_matrices(way, scale):
    found = way(scale * torch.tensor(matrix((16, 8)), dtype=torch.float32), Polynomial.ns5, 5)
    assert found.isfinite().all()
    if scale == 0.0:
        assert not found.any()


@pytest.mark.parametrize("way", [newton_schulz, by_eigenvalues])
def test_rank_one_and_argument_untouched(way):
    x = torch.outer(torch.arange(1.0, 9.0), torch.ones(5))
    before = x.clone()
    found = way(x, Polynomial.ns5, 5).double().numpy()
    np.testing.assert_allclose(found, oracle(x.numpy(), Polynomial.ns5, 5), atol=1e-3)
    assert torch.equal(x, before)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 24), st.integers(1, 24), st.integers(0, 2**31))
def test_transposing_commutes(rows, columns, seed):
    x = torch.tensor(matrix((rows, columns), seed), dtype=torch.float64)
    a = by_eigenvalues(x, Polynomial.ns5, 5)
    np.testing.assert_allclose(by_eigenvalues(x.T.contiguous(), Polynomial.ns5, 5).T.numpy(), a.numpy(), atol=1e-6)


NS5_FP32 = OrthogonalMap(Polynomial.ns5, 5, NSPrecision.fp32)


def stepped(orthogonalizer, dtype=torch.float32, keep=0.9, amount=0.3):
    """Targets after one step, and what the oracle says they should be."""
    updates = [torch.tensor(matrix(shape, i), dtype=dtype) for i, shape in enumerate(LARGER * 2)]
    targets = [torch.tensor(matrix(shape, 50 + i), dtype=dtype) for i, shape in enumerate(LARGER * 2)]
    expected = [
        keep * t.double().numpy() - amount * oracle(u.numpy(), Polynomial.ns5, 5)
        for t, u in zip(targets, updates, strict=True)
    ]
    calls = [lambda update=update: update for update in updates]
    orthogonalizer.step(targets, calls, keep, [amount] * len(targets), NS5_FP32)
    orthogonalizer.close()
    return targets, expected


LARGER = [*SHAPES, (300, 140), (140, 300), (129, 129)]


@pytest.mark.parametrize("kind", ["ns", "eigh"])
def test_workers_change_no_bit(kind):
    one, two, three = (stepped(Orthogonalizer(OrthogonalizerKind[kind], "cpu", workers))[0] for workers in (1, 2, 3))
    for other in (two, three):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("device", ["cpu", "an accelerator"])
@pytest.mark.parametrize("kind", ["ns", "eigh"])
def test_a_step_is_decay_and_the_oracles_direction(kind, device):
    """Not on `cpu`, matrices of one shape are stacked: what accelerators do, run here on the CPU."""
    targets, expected = stepped(Orthogonalizer(OrthogonalizerKind[kind], device, 2), torch.float64)
    for target, value in zip(targets, expected, strict=True):
        np.testing.assert_allclose(target.numpy(), value, atol=1e-6)


def test_symmetric_products_skip_the_upper_blocks_and_mirror_them():
    x = torch.tensor(matrix((300, 40)))
    torch.testing.assert_close(mirrored(lower_product(x, x)), x @ x.T, rtol=1e-12, atol=1e-12)


def test_auto_is_eigh_on_cpu_and_the_iteration_elsewhere():
    auto = OrthogonalizerKind.auto
    assert resolved(auto, "cpu", NSPrecision.fp32) is OrthogonalizerKind.eigh
    assert resolved(auto, "cpu", NSPrecision.bf16) is OrthogonalizerKind.ns
    assert resolved(auto, "xla", NSPrecision.fp32) is OrthogonalizerKind.ns
    assert resolved(OrthogonalizerKind.ns, "cpu", NSPrecision.fp32) is OrthogonalizerKind.ns
