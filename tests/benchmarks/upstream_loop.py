"""Upstream's model, loader and optimizer in a loop like its main's, for shapes that its main does not offer.

Usage: python upstream_loop.py TRAIN_GPT2_PY SHARDS N_LAYER N_HEAD N_EMBD ROWS CONTEXT TOKENS_PER_STEP STEPS

Prints upstream's step lines. Run it in a process of its own, as upstream's script is.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

from gpt2exp.models.upstream import SourceFile, load

LR, WEIGHT_DECAY, MAX_GRAD_NORM = 6e-4, 0.1, 1.0


def main(path: str, shards: str, *sizes: str) -> None:
    """Train and print."""
    n_layer, n_head, n_embd, rows, context, tokens_per_step, steps = map(int, sizes)
    upstream: Any = load(SourceFile(Path(path), Path(path).read_bytes()))
    torch.manual_seed(42)
    config = upstream.GPTConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd)
    model = upstream.GPT(config)
    loader = upstream.DistributedDataLoader(shards, rows, context, 0, 1)
    optimizer = model.configure_optimizers(WEIGHT_DECAY, LR, (0.9, 0.95), "cpu", 0)
    for step in range(steps):
        started = time.time()
        loss, norm = update(model, loader, optimizer, tokens_per_step // (rows * context))
        print(
            f"step {step + 1:4d}/{steps} | train loss {loss:.6f} | norm {norm:.4f} | lr {LR:.2e} | "
            f"({(time.time() - started) * 1000:.2f} ms | 0 tok/s)",
            flush=True,
        )


def update(model: Any, loader: Any, optimizer: torch.optim.Optimizer, accumulation: int) -> tuple[float, float]:
    """One update as upstream's main makes it; loss and gradient norm."""
    model.train()
    optimizer.zero_grad(set_to_none=True)
    total: Any = 0.0
    for _ in range(accumulation):
        inputs_NT, targets_NT = loader.next_batch()
        _, loss = model(inputs_NT, targets_NT, return_logits=False)
        share = loss / accumulation
        total += share.detach()
        share.backward()
    total = total.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    for group in optimizer.param_groups:
        group["lr"] = LR
    optimizer.step()
    return total, float(norm)


if __name__ == "__main__":
    main(*sys.argv[1:])
