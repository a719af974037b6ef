"""What a micro-batch needs in a device's memory: a formula for XLA, fitted on compiled graphs; the table in docs.

Shapes: T tokens of context, V vocabulary, C width (n_embd), H heads, L layers, b rows of a micro-batch on one device.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from gpt2exp import projection
from gpt2exp.config import Config, ModelConfig, ModelSource, Precision
from gpt2exp.derived import derive
from gpt2exp.models.inventory import parameters
from gpt2exp.optim.base import GroupRule, Recipe, TensorInfo
from gpt2exp.optim.param_groups import assign
from gpt2exp.optim.registry import optimizers

GIB = 2**30
FP32 = 4
"""Bytes. Under bf16 too: parameters, gradients and state stay fp32, and temporaries are counted in it."""
CHIP_GIB = 15.75
"""Of a TPU v5e's 16 GB, as its out-of-memory messages count them."""
CHIP_SHARE = 0.85


@dataclass(frozen=True)
class Temporaries:
    """Copies alive at the peak of forward and backward: (T, V) and (T, C) outside the layers, then in each layer
    (H, T, T) and (T, C). With more than two rows XLA keeps `extra_layers` more.
    """

    logits: int
    outside: int
    attention: int
    inside: int
    extra_layers: int

    def count(self, model: ModelConfig, context_length: int, rows: int) -> int:
        """Numbers alive at the peak for `rows` rows."""
        tokens, width = context_length, model.n_embd
        layers = model.n_layer + (self.extra_layers if rows > 2 else 0)
        layer = self.attention * model.n_head * tokens**2 + self.inside * tokens * width
        return rows * (self.logits * tokens * model.vocab_size + self.outside * tokens * width + layers * layer)


TEMPORARIES = {
    Precision.fp32: Temporaries(logits=4, outside=5, attention=1, inside=17, extra_layers=1),
    Precision.bf16: Temporaries(logits=4, outside=8, attention=2, inside=20, extra_layers=0),
}
"""Fitted on `Intermediate tensor size` of forward and backward of upstream's GPT, compiled and not run by torch_xla
2.9.0 for one CPU device, varying L, H, V and b one at a time around GPT-2 124M. XLA's CPU compiler computes bf16
products in fp32, so bf16 is an upper bound. Shorter contexts need less than this says (T = 512, two layers: three
quarters)."""


@dataclass(frozen=True)
class Compiled:
    """The intermediate size of one compiled graph, in GiB."""

    model: str
    precision: Precision
    rows: int
    gib: float


COMPILED = (
    Compiled("gpt2", Precision.fp32, 1, 1.942),
    Compiled("gpt2", Precision.fp32, 2, 3.887),
    Compiled("gpt2", Precision.fp32, 4, 8.157),
    Compiled("gpt2", Precision.fp32, 8, 16.312),
    Compiled("gpt2", Precision.bf16, 1, 2.619),
    Compiled("gpt2", Precision.bf16, 4, 10.425),
    Compiled("gpt2_medium", Precision.fp32, 1, 3.060),
    Compiled("gpt2_medium", Precision.fp32, 2, 7.765),
    Compiled("gpt2_medium", Precision.fp32, 4, 15.886),
    Compiled("gpt2_medium", Precision.bf16, 1, 5.489),
    Compiled("gpt2_medium", Precision.bf16, 2, 11.328),
    Compiled("gpt2_medium", Precision.bf16, 4, 22.637),
    Compiled("gpt2_large", Precision.fp32, 1, 5.199),
)
"""Context 1,024. At one row of the larger models the compiler shares more than the formula knows of."""


@dataclass(frozen=True)
class Estimate:
    """Bytes on one device: what stays (parameters, gradients, state, masks) and what a micro-batch needs besides."""

    rows: int
    resident: float
    temporary: float

    @property
    def total(self) -> float:
        """Both."""
        return self.resident + self.temporary

    def __str__(self) -> str:
        return f"micro-batch of {self.rows}: {gib(self.resident)} resident + {gib(self.temporary)} temporary"


def gib(count: float) -> str:
    """Bytes in GiB, in MiB where that is easier to read."""
    return f"{count / GIB:.3g} GiB" if count >= GIB / 10 else f"{count / 2**20:.3g} MiB"


def estimate(cfg: Config, rows: int) -> Estimate:
    """Of a micro-batch of `rows` rows on one device, on any hardware."""
    if cfg.hardware.kind == "cpu":
        copies = 2 + max(len(group.rule.slots) for group in _groups(cfg.model, cfg.optimizer))
        resident = projection.parameter_count(cfg.model) * projection.item_size(cfg.precision) * copies
        return Estimate(rows, resident, rows * projection.row_bytes(cfg))
    return xla_estimate(cfg.model, cfg.optimizer, cfg.precision, cfg.schedule.context_length, rows)


def xla_estimate(
    model: ModelConfig, optimizer: Recipe, precision: Precision, context_length: int, rows: int
) -> Estimate:
    """By the formula: forward and backward of a micro-batch. Needs no torch."""
    temporary = FP32 * TEMPORARIES[precision].count(model, context_length, rows)
    return Estimate(rows, resident_bytes(model, optimizer), temporary)


def resident_bytes(model: ModelConfig, optimizer: Recipe) -> int:
    """Parameters, gradients, optimizer state, and upstream's causal masks (one (T, T) buffer a layer)."""
    stored = sum(parameter.size for parameter in parameters(model))
    masks = model.n_layer * model.block_size**2 if model.source is ModelSource.llmc else 0
    return FP32 * (2 * stored + state_size(model, optimizer) + masks)


def state_size(model: ModelConfig, optimizer: Recipe) -> int:
    """Numbers in all slots of all parameter groups."""
    tensors = {parameter.name: parameter for parameter in parameters(model)}
    owned = assign(_groups(model, optimizer), [TensorInfo(name, p.shape) for name, p in tensors.items()])
    return sum(len(group.rule.slots) * tensors[tensor.name].size for group in owned for tensor in group.tensors)


def limit_bytes(cfg: Config) -> float:
    """What may be planned with on one device: virtual devices share the machine's memory."""
    if cfg.hardware.kind == "tpu":
        return CHIP_SHARE * CHIP_GIB * GIB
    machine = float(psutil.virtual_memory().total)
    return machine if cfg.hardware.kind == "cpu" else projection.MEMORY_SHARE * machine / cfg.hardware.devices


def micro_batch_size(cfg: Config) -> int:
    """Rows each device takes at once: as configured, else the largest divisor of its share that fits, at least 1."""
    if cfg.hardware.micro_batch_size is not None:
        return cfg.hardware.micro_batch_size
    if cfg.hardware.kind == "cpu":
        slots = max(len(group.rule.slots) for group in _groups(cfg.model, cfg.optimizer))
        return projection.micro_batch_size(cfg, psutil.virtual_memory().total, slots)
    share, limit = derive(cfg).rows_per_step // cfg.hardware.devices, limit_bytes(cfg)
    divisors = [rows for rows in range(1, share + 1) if share % rows == 0]
    return max((rows for rows in divisors if estimate(cfg, rows).total <= limit), default=1)


def _groups(model: ModelConfig, optimizer: Recipe) -> tuple[GroupRule, ...]:
    return optimizers()[optimizer.kind].groups(optimizer, model.n_head)
