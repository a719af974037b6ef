"""Our Muon rule over the hidden matrices of GPT-2 (3 layers with --quick) against `torch.optim.Muon`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from benchmarking import Benchmark, Measurement, Reach, Settings, alternate

from gpt2exp.config import Precision
from gpt2exp.engines.torch.backends.local import LocalBackend
from gpt2exp.optim.muon import MuonRecipe, MuonRule
from gpt2exp.optim.newton_schulz import NSPrecision, Polynomial, newton_schulz, oracle
from gpt2exp.optim.orthogonalize import OrthogonalizerKind, OrthogonalMap, orthogonalized

WIDTH = 768
LAYER = ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH))
NS5 = OrthogonalMap(Polynomial.ns5, 5, NSPrecision.fp32)


class Ours:
    """The rule as the CPU backend runs it."""

    def __init__(self, weights: list[torch.Tensor], grads: list[torch.Tensor], threads: int) -> None:
        self.params = [weight.clone() for weight in weights]
        self.grads = [grad.clone() for grad in grads]
        self.slots = {"momentum_buffer": [torch.zeros_like(weight) for weight in weights]}
        self.backend = LocalBackend(Precision.fp32, threads)
        self.rule = MuonRule(MuonRecipe())

    def __call__(self) -> None:
        """One step; the rule writes its direction over the gradient, which keeps its cost and its size."""
        with torch.no_grad():
            self.rule.update(self.backend.ops, self.params, self.grads, self.slots, self.rule.step_scalars(1, 1e-3))


class Torchs:
    """`torch.optim.Muon` with the same scale, bf16 iterations inside."""

    def __init__(self, weights: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        params = [weight.clone().requires_grad_() for weight in weights]
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad.clone()
        self.optimizer = torch.optim.Muon(params, lr=2e-5, adjust_lr_fn="match_rms_adamw")

    def __call__(self) -> None:
        """One step."""
        self.optimizer.step()


def measure(settings: Settings) -> Measurement:
    """Time both in turn, and each one's error to the float64 map."""
    torch.set_num_threads(settings.threads)
    layers = settings.choose(12, 3)
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=generator).mul_(0.02) for _ in range(layers) for shape in LAYER]
    grads = [torch.randn(weight.shape, generator=generator).mul_(1e-3) for weight in weights]
    ours = Ours(weights, grads, settings.threads)
    taken = alternate(ours, Torchs(weights, grads), rounds=settings.choose(5, 5))
    ours.backend.close()
    families = ", ".join(f"{name} {error(x, True):.1e} (bf16 {error(x, False):.1e})" for name, x in FAMILIES.items())
    return replace(taken, notes=(f"{len(weights)} matrices; relative error to the float64 map: {families}",))


def error(matrix: np.ndarray, ours: bool) -> float:
    """Frobenius distance to the float64 map, relative to its norm."""
    x = torch.tensor(matrix, dtype=torch.float32)
    bf16 = newton_schulz(x.bfloat16(), Polynomial.ns5, 5)
    found = orthogonalized(x, NS5, OrthogonalizerKind.eigh) if ours else bf16
    expected = oracle(x.numpy(), Polynomial.ns5, 5)
    return float(np.linalg.norm(found.double().numpy() - expected) / np.linalg.norm(expected))


def spread(decades: float) -> np.ndarray:
    """A 768 x 768 matrix with singular values over some decades."""
    u, _, vt = np.linalg.svd(np.random.default_rng(1).standard_normal((WIDTH, WIDTH)))
    return np.asarray((u * np.logspace(0, -decades, WIDTH)) @ vt)


FAMILIES = {"Gaussian": np.random.default_rng(0).standard_normal((WIDTH, 4 * WIDTH)), "six decades": spread(6)}

ROW = Benchmark(
    "one Muon step over the hidden matrices, momentum and decay included",
    "torch.optim.Muon",
    Reach(0.6),
    measure,
)
