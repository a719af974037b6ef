"""What a model costs in SQL, estimated before anything starts: rows, seconds and memory.

Rows: B T (12 L E² + V E) of the joins behind linear maps, L B T (T + 1) E of attention, for B rows of T tokens, L
layers of width E and a vocabulary of V. Time and memory were measured on one core of a small machine between 10⁵ and
10⁸ rows: 0.11 to 0.17 microseconds and 20 to 32 bytes a row, besides a fixed cost of a fraction of a second a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpt2exp.config import Config, ModelConfig
from gpt2exp.errors import RefusedError

SECONDS_PER_ROW = 0.17e-6
SECONDS_PER_LAYER = 0.5
BYTES_PER_ROW = 32
FIXED_BYTES = 180e6
WORTH_SAYING = 10_000_000
"""Rows from which on a person should know beforehand."""


@dataclass(frozen=True)
class Cost:
    """Of one micro-batch's forward and backward pass, at most."""

    rows: int

    @property
    def gigabytes(self) -> float:
        """Memory, the libraries' own included."""
        return (FIXED_BYTES + BYTES_PER_ROW * self.rows) / 1e9

    def seconds(self, n_layer: int) -> float:
        """Time on one core."""
        return SECONDS_PER_LAYER * n_layer + SECONDS_PER_ROW * self.rows


def cost(model: ModelConfig, batch: int, context: int) -> Cost:
    """Of `batch` rows of `context` tokens."""
    tokens, width, layers = batch * context, model.n_embd, model.n_layer
    linear = tokens * (12 * layers * width * width + model.vocab_size * width)
    return Cost(linear + layers * tokens * (context + 1) * width)


def fitting_rows(cfg: Config) -> int:
    """Rows of a micro-batch: the largest divisor of a step's that stays below `hardware.max_rows`, at least 1."""
    step, context = cfg.schedule.tokens_per_step // cfg.schedule.context_length, cfg.schedule.context_length
    divisors = [rows for rows in range(1, step + 1) if step % rows == 0]
    fitting = (rows for rows in divisors if cost(cfg.model, rows, context).rows <= cfg.hardware.max_rows)
    return max(fitting, default=1)


def check_size(cfg: Config, batch: int) -> str | None:
    """Refuse what would not end; what a large model will take, as a line for people, None for a small one.

    Raises:
        RefusedError: naming the estimate, the limit and the keys that move them.
    """
    limit, found = cfg.hardware.max_rows, cost(cfg.model, batch, cfg.schedule.context_length)
    micro_batches = cfg.schedule.tokens_per_step // cfg.schedule.context_length // batch
    said = (
        f"hardware={cfg.hardware.kind}: a micro-batch of {batch} x {cfg.schedule.context_length} tokens of this model "
        f"joins about {found.rows:.2g} rows ({found.gigabytes:.2g} GB), an update takes about "
        f"{_time(micro_batches * found.seconds(cfg.model.n_layer))}"
    )
    if found.rows > limit:
        raise RefusedError(
            f"{said}: more than hardware.max_rows={limit}; use a smaller model, schedule.context_length or "
            "hardware.micro_batch_size, or raise hardware.max_rows"
        )
    return said if found.rows > WORTH_SAYING else None


def _time(seconds: float) -> str:
    for unit, scale in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.2g} {unit}"
    return f"{seconds:.2g} seconds"
