"""Estimates made before anything runs: memory of a micro-batch, disk of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpt2exp.config import Config, ModelConfig, Precision
from gpt2exp.derived import derive
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


def snapshot_bytes(cfg: Config) -> int:
    """Disk of one snapshot: the matrices inside the blocks, in fp32."""
    return 4 * 12 * cfg.model.n_embd**2 * cfg.model.n_layer


def tracking_bytes(cfg: Config) -> int:
    """Disk of the snapshots that may exist at once, and of all eigenvalues and kept weights."""
    count, model = len(derive(cfg).spectra_steps), cfg.model
    at_once = count if cfg.tracking.keep_weights else min(count, cfg.tracking.max_pending + 1)
    eigenvalues = 8 * 6 * model.n_embd * model.n_layer
    return at_once * snapshot_bytes(cfg) + count * eigenvalues


def check_disk(cfg: Config, slots: int, folder: Path) -> None:
    """Refuse a run that would not fit; one checkpoint more than `keep` exists while saving.

    Raises:
        StorageError: naming what is needed and what is free.
    """
    saved = cfg.checkpoint.keep + 1 if cfg.checkpoint.keep else 0
    needed = int(DISK_MARGIN * (checkpoint_bytes(cfg, slots) * saved + tracking_bytes(cfg)))
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise StorageError(
            f"{existing}: {free / 1e9:.1f} GB free, but {saved} checkpoints of this model and its snapshots for "
            f"spectra ({tracking_bytes(cfg) / 1e9:.1f} GB) need {needed / 1e9:.1f} GB; free some, lower "
            "checkpoint.keep, set tracking.keep_weights=false, or choose another hydra.run.dir"
        )


def size(count: float) -> str:
    """Bytes as people read them: `442 kB`, `1.36 GB`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} bytes"
