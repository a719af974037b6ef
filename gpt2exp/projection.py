"""Estimates made before anything runs: memory of a micro-batch, disk of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpt2exp.config import Config, ModelConfig, Precision, derive
from gpt2exp.errors import StorageError

MEMORY_SHARE = 0.5
"""Share of the machine's memory that training may plan with."""
ACTIVATIONS_PER_LAYER = 34
"""Copies of a (T, C) activation that a block keeps for its backward pass, MLP's 4C ones included."""
DISK_MARGIN = 1.25


def parameter_count(model: ModelConfig) -> int:
    """Stored parameters, the tied embedding once."""
    width, bias = model.n_embd, int(model.bias)
    block = 12 * width * width + 2 * width + bias * (9 * width + 2 * width)
    embeddings = (model.vocab_size + model.block_size) * width
    return embeddings + model.n_layer * block + width * (1 + bias)


def item_size(precision: Precision) -> int:
    """Bytes of a parameter."""
    return 8 if precision is Precision.fp64 else 4


def row_bytes(cfg: Config) -> int:
    """Memory that one row of context_length tokens needs during forward and backward."""
    model, tokens = cfg.model, cfg.schedule.context_length
    attention = 3 * model.n_head * tokens * tokens
    per_layer = ACTIVATIONS_PER_LAYER * tokens * model.n_embd + attention
    head = 4 * tokens * model.vocab_size
    return item_size(cfg.precision) * (model.n_layer * per_layer + head)


def micro_batch_size(cfg: Config, memory_bytes: int, slots: int) -> int:
    """Rows a device takes at once: as configured, else the largest divisor of its share that fits.

    Args:
        cfg: the configuration.
        memory_bytes: of the device.
        slots: optimizer state tensors per parameter.
    """
    if cfg.hardware.micro_batch_size is not None:
        return cfg.hardware.micro_batch_size
    rows = derive(cfg).rows_per_step // cfg.hardware.devices
    resident = parameter_count(cfg.model) * item_size(cfg.precision) * (2 + slots)
    fitting = max(1, int((MEMORY_SHARE * memory_bytes - resident) // row_bytes(cfg)))
    return max(divisor for divisor in range(1, rows + 1) if rows % divisor == 0 and divisor <= fitting)


def checkpoint_bytes(cfg: Config, slots: int) -> int:
    """Disk of one checkpoint."""
    return parameter_count(cfg.model) * item_size(cfg.precision) * (1 + slots)


def check_disk(cfg: Config, slots: int, folder: Path) -> None:
    """Refuse a run whose checkpoints would not fit; one more than `keep` exists while saving.

    Raises:
        StorageError: naming what is needed and what is free.
    """
    if cfg.checkpoint.keep == 0:
        return
    needed = int(DISK_MARGIN * checkpoint_bytes(cfg, slots) * (cfg.checkpoint.keep + 1))
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise StorageError(
            f"{existing}: {free / 1e9:.1f} GB free, but {cfg.checkpoint.keep + 1} checkpoints of this model "
            f"need {needed / 1e9:.1f} GB; free some, lower checkpoint.keep, or choose another hydra.run.dir"
        )
