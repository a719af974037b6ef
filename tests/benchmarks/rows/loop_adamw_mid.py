"""Our whole training step of a mid-size GPT against upstream's classes in a loop like its main's."""

from __future__ import annotations

from pathlib import Path

from benchmarking import Benchmark, Measurement, Reach, Settings
from whole_loop import Loop, shortened

from gpt2exp.models.upstream import UPSTREAM

LAYERS, HEADS, WIDTH = 6, 6, 384
ROWS, CONTEXT, TOKENS_PER_STEP = 4, 128, 1024
PEER = Path(__file__).resolve().parent.parent / "upstream_loop.py"


def upstream_command(steps: int) -> list[str]:
    """The peer's process."""
    sizes = (LAYERS, HEADS, WIDTH, ROWS, CONTEXT, TOKENS_PER_STEP, steps)
    return [str(PEER), UPSTREAM.file, "train_*.bin", *map(str, sizes)]


LOOP = Loop(
    upstream_command,
    our_overrides=(
        f"model.n_layer={LAYERS}",
        f"model.n_head={HEADS}",
        f"model.n_embd={WIDTH}",
        f"schedule.context_length={CONTEXT}",
        "schedule.decay=constant",
        "schedule.warmup_steps=0",
        f"hardware.micro_batch_size={ROWS}",
        f"data.window_tokens={ROWS * CONTEXT}",
    ),
    tokens_per_step=TOKENS_PER_STEP,
    steps=12,
    rounds=5,
)


def measure(settings: Settings) -> Measurement:
    """Processes in turn."""
    return shortened(LOOP, settings).measure(settings)


ROW = Benchmark(
    f"the same for {LAYERS} layers x {WIDTH} with GPT-2's vocabulary (30M parameters)",
    "upstream's model, loader and optimizer in a loop like its main's",
    Reach(1.0),
    measure,
)
