"""What a GPT consists of, computed from its shape alone: no torch, no weights.

Three levels, all by upstream's names: parameters (as `named_parameters`, the tied tensor once),
matrices (two-dimensional entries by name, the tied output head too) and traces (Q, K and V cut out of
the packed `c_attn`, so that each has a spectrum of its own).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from gpt2exp.config import ModelConfig

WTE = "transformer.wte.weight"
WPE = "transformer.wpe.weight"
LM_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Parameter:
    """One stored tensor, or one name of it: a linear map's weight is (outputs, inputs)."""

    name: str
    shape: tuple[int, ...]
    role: str
    block: int | None = None

    @property
    def size(self) -> int:
        """Number of scalars."""
        return prod(self.shape)

    @property
    def stored_in(self) -> str:
        """Name of the parameter that holds the numbers: wte's for the tied output head."""
        return WTE if self.name == LM_HEAD else self.name

    @property
    def unique(self) -> bool:
        """False for the second name of a tied tensor."""
        return self.name == self.stored_in

    @property
    def adamw_owner(self) -> str:
        """The group of upstream's AdamW: tensors of two or more dimensions decay, embeddings too."""
        return "adamw decay" if len(self.shape) >= 2 else "adamw no_decay"

    @property
    def matrix_owner(self) -> str:
        """Who updates it under a matrix optimizer (Muon): the rule itself, or its auxiliary AdamW."""
        return "hidden matrix" if self.block is not None and len(self.shape) == 2 else "auxiliary"


@dataclass(frozen=True)
class Trace:
    """A matrix with a spectrum of its own: rows [start, stop) of a stored matrix."""

    name: str
    kind: str
    matrix: Parameter
    start: int
    stop: int
    role: str

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.stop - self.start, self.matrix.shape[1]

    @property
    def size(self) -> int:
        """Number of scalars."""
        return prod(self.shape)


def parameters(model: ModelConfig) -> tuple[Parameter, ...]:
    """Every stored parameter in the order of `named_parameters`."""
    blocks = [parameter for block in range(model.n_layer) for parameter in _block(model, block)]
    return (
        Parameter(WTE, (model.vocab_size, model.n_embd), "token embedding"),
        Parameter(WPE, (model.block_size, model.n_embd), "position embedding"),
        *blocks,
        *_norm(model, "transformer.ln_f", "final norm", None),
    )


def matrices(model: ModelConfig) -> tuple[Parameter, ...]:
    """Two-dimensional entries by name: 51 for GPT-2, of which the output head is stored in wte."""
    stored = [parameter for parameter in parameters(model) if len(parameter.shape) == 2]
    return (*stored, Parameter(LM_HEAD, (model.vocab_size, model.n_embd), "output head, tied to wte"))


def traces(model: ModelConfig) -> tuple[Trace, ...]:
    """The trace level: six matrices a block, then wte, wpe and the output head (75 for GPT-2)."""
    return tuple(trace for matrix in sorted(matrices(model), key=_last) for trace in _traces(matrix))


def parameter_count(model: ModelConfig) -> int:
    """Number of stored scalars; tied weights count once."""
    return sum(parameter.size for parameter in parameters(model))


def _block(model: ModelConfig, block: int) -> Iterator[Parameter]:
    prefix, width = f"transformer.h.{block}", model.n_embd
    yield from _norm(model, f"{prefix}.ln_1", "norm before attention", block)
    yield from _linear(model, f"{prefix}.attn.c_attn", (3 * width, width), "packed Q, K, V projection", block)
    yield from _linear(model, f"{prefix}.attn.c_proj", (width, width), "attention output projection", block)
    yield from _norm(model, f"{prefix}.ln_2", "norm before MLP", block)
    yield from _linear(model, f"{prefix}.mlp.c_fc", (4 * width, width), "MLP input projection", block)
    yield from _linear(model, f"{prefix}.mlp.c_proj", (width, 4 * width), "MLP output projection", block)


def _norm(model: ModelConfig, name: str, role: str, block: int | None) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (model.n_embd,), f"{role}: scale", block)
    if model.bias:
        yield Parameter(f"{name}.bias", (model.n_embd,), f"{role}: bias", block)


def _linear(model: ModelConfig, name: str, shape: tuple[int, int], role: str, block: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", shape, role, block)
    if model.bias:
        yield Parameter(f"{name}.bias", shape[:1], f"{role}: bias", block)


_KINDS = {"attn.c_proj": "W_O", "mlp.c_fc": "W_MLP_IN", "mlp.c_proj": "W_MLP_OUT"}
_PACKED = {"W_Q": "query projection", "W_K": "key projection", "W_V": "value projection"}
_OUTSIDE = {WTE: "wte", WPE: "wpe", LM_HEAD: "lm_head"}


def _traces(matrix: Parameter) -> Iterator[Trace]:
    rows = matrix.shape[0]
    if matrix.block is None:
        name = _OUTSIDE[matrix.name]
        yield Trace(name, name, matrix, 0, rows, matrix.role)
        return
    prefix = f"L{matrix.block:02d}_"
    local = matrix.name.removeprefix(f"transformer.h.{matrix.block}.").removesuffix(".weight")
    if local in _KINDS:
        kind = _KINDS[local]
        yield Trace(prefix + kind, kind, matrix, 0, rows, matrix.role)
        return
    part = rows // len(_PACKED)
    for index, (kind, role) in enumerate(_PACKED.items()):
        yield Trace(prefix + kind, kind, matrix, index * part, (index + 1) * part, role)


def _last(matrix: Parameter) -> bool:
    """Sorts (stably) the matrices outside the blocks behind those inside."""
    return matrix.block is None
