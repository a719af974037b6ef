"""Our AdamW rule over GPT-2's 148 tensors against PyTorch's loop implementation."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import torch
from benchmarking import Benchmark, Measurement, Reach, Settings, alternate, seconds, timed

from gpt2exp.config import ModelConfig, ModelSource
from gpt2exp.models.inventory import parameters
from gpt2exp.optim.adamw import AdamWRule
from gpt2exp.optim.ops import HostOps

LR, BETAS, EPS, WEIGHT_DECAY = 6e-4, (0.9, 0.95), 1e-8, 0.1
GPT2 = ModelConfig("gpt2-124M", ModelSource.reference, None, 12, 12, 768, 1024, 50257)


class Ours:
    """Weights and slots under our rule; the gradient is the same at every step."""

    def __init__(self, weights: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        self.params, self.grads = [weight.clone() for weight in weights], grads
        self.slots = {slot: [torch.zeros_like(w) for w in weights] for slot in ("exp_avg", "exp_avg_sq")}
        self.rule, self.step = AdamWRule(LR, BETAS, EPS, WEIGHT_DECAY), 0

    def __call__(self) -> None:
        """One step."""
        self.step += 1
        scalars = self.rule.step_scalars(self.step, 1.0)
        self.rule.update(HostOps(), self.params, self.grads, self.slots, scalars)


class Torchs:
    """The same under `torch.optim.AdamW`."""

    def __init__(self, weights: list[torch.Tensor], grads: list[torch.Tensor], fused: bool) -> None:
        self.params = [weight.clone().requires_grad_() for weight in weights]
        for p, grad in zip(self.params, grads, strict=True):
            p.grad = grad
        self.optimizer = torch.optim.AdamW(
            self.params, LR, BETAS, EPS, weight_decay=WEIGHT_DECAY, foreach=False, fused=fused
        )

    def __call__(self) -> None:
        """One step."""
        self.optimizer.step()


def measure(settings: Settings) -> Measurement:
    """Time both in turn and compare every bit of weights and moments at the end."""
    torch.set_num_threads(settings.threads)
    model = replace(GPT2, n_layer=3) if settings.quick else GPT2
    generator = torch.Generator().manual_seed(0)
    shapes = [parameter.shape for parameter in parameters(model)]
    weights = [torch.randn(shape, generator=generator).mul_(0.02) for shape in shapes]
    grads = [torch.randn(shape, generator=generator).mul_(1e-3) for shape in shapes]
    ours, peer = Ours(weights, grads), Torchs(weights, grads, fused=False)
    taken = alternate(ours, peer, rounds=settings.choose(9, 5))
    same = identical(ours, peer)
    del peer
    fused = Torchs(weights, grads, fused=True)
    fused()
    fused_time = median(timed(fused) for _ in range(3))
    notes = (
        f"{len(shapes)} tensors, weights and moments {'equal' if same else 'NOT equal'} to the bit",
        f"fused=True, which has other bits: {seconds(fused_time)}",
    )
    return replace(taken, same=same, notes=notes)


def identical(ours: Ours, peer: Torchs) -> bool:
    """Whether weights and both moments are equal to the bit."""
    state = [peer.optimizer.state[p] for p in peer.params]
    pairs = [
        (ours.params, peer.params),
        *((ours.slots[slot], [entry[slot] for entry in state]) for slot in ours.slots),
    ]
    return all(torch.equal(a, b) for left, right in pairs for a, b in zip(left, right, strict=True))


ROW = Benchmark(
    "one AdamW step over GPT-2's tensors (three layers and the embeddings with --quick), decay on all",
    "torch.optim.AdamW(foreach=False, fused=False)",
    Reach(1.0),
    measure,
)
