"""Our whole training step of GPT-2 124M in fp32 on the CPU against upstream's own main."""

from __future__ import annotations

from benchmarking import Benchmark, Measurement, Reach, Settings
from whole_loop import Loop, shortened

from gpt2exp.models.upstream import UPSTREAM


def upstream_command(steps: int) -> list[str]:
    """Upstream's script as it is; no validation, no warm-up of the learning rate beyond our preset's."""
    flags = (
        "--input_bin train_*.bin --model d12 --batch_size 2 --sequence_length 64 --total_batch_size 256 "
        f"--num_iterations {steps} --overfit_single_batch 0 --write_tensors 0 --device cpu "
        "--learning_rate 6e-4 --warmup_iters 3 --learning_rate_decay_frac 0.0 --weight_decay 0.1"
    )
    return [UPSTREAM.file, *flags.split()]


LOOP = Loop(upstream_command, our_overrides=(), tokens_per_step=256, steps=10, rounds=5)


def measure(settings: Settings) -> Measurement:
    """Processes in turn."""
    return shortened(LOOP, settings).measure(settings)


ROW = Benchmark(
    "data, forward, backward, clipping and AdamW of GPT-2 124M",
    "upstream's train_gpt2.py main, its printed ms per step",
    Reach(1.0),
    measure,
)
