"""Which matrices have a spectrum: Q, K and V cut out of the packed projection, and the rest of each block."""

from __future__ import annotations

from dataclasses import dataclass

from gpt2exp.config import ModelConfig
from gpt2exp.models.inventory import traces


@dataclass(frozen=True)
class Slice:
    """Rows [start, stop) of a stored matrix, under the name its spectrum gets: `L00_W_Q`."""

    name: str
    kind: str
    block: int
    stored_in: str
    start: int
    stop: int


def slices(model: ModelConfig) -> tuple[Slice, ...]:
    """Six slices a block in order of depth: 72 for GPT-2, cut from 48 stored matrices."""
    return tuple(
        Slice(trace.name, trace.kind, trace.matrix.block, trace.matrix.stored_in, trace.start, trace.stop)
        for trace in traces(model)
        if trace.matrix.block is not None
    )
