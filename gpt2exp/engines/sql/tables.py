"""Which tables hold the GPT's weights, by upstream's parameter names.

Dimensions, all counted from 0: `token` (vocabulary), `pos` (position), `e` (width), `layer`, `s` (0 query, 1 key,
2 value), `h` (head), `c` (inside a head), `f` (hidden width of the MLP), `o` (output, of the width). A value is in
column `w`. The tensors of one role lie in one table, one layer beside the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from gpt2exp.config import ModelConfig
from gpt2exp.models.inventory import WPE, WTE


@dataclass(frozen=True)
class Table:
    """A table of weights: its dimensions with their sizes, and the tensors in it (one a layer, or one).

    `tensor_shape` is upstream's shape of each of them.
    """

    name: str
    sizes: dict[str, int]
    tensors: tuple[str, ...]
    tensor_shape: tuple[int, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions, in the order of the tensors' own axes."""
        return tuple(self.sizes)

    @property
    def rows(self) -> int:
        """Number of weights."""
        return prod(self.sizes.values())

    @property
    def keys(self) -> str:
        """The dimensions as a list of columns."""
        return ", ".join(self.dims)

    @property
    def grad(self) -> str:
        """Name of the table of gradients, value in column `g`."""
        return f"{self.name}_grad"

    @property
    def part(self) -> str:
        """Name of the table of one micro-batch's gradients."""
        return f"{self.name}_part"

    @property
    def state(self) -> str:
        """Name of the table of the optimizer's state, a column a slot."""
        return f"{self.name}_state"


def tables(model: ModelConfig) -> tuple[Table, ...]:
    """Every table of weights, in the order of the parameters; the tied output head is `wte`."""
    width = model.n_embd
    return (
        Table("wte", {"token": model.vocab_size, "e": width}, (WTE,), (model.vocab_size, width)),
        Table("wpe", {"pos": model.block_size, "e": width}, (WPE,), (model.block_size, width)),
        *(table for table in _block(model) if model.bias or not table.tensors[0].endswith(".bias")),
        Table("lnf_w", {"e": width}, ("transformer.ln_f.weight",), (width,)),
        *((Table("lnf_b", {"e": width}, ("transformer.ln_f.bias",), (width,)),) if model.bias else ()),
    )


def _block(model: ModelConfig) -> Iterator[Table]:
    width, heads = model.n_embd, model.n_head
    head = {"h": heads, "c": width // heads}
    yield _layered(model, "ln1_w", "ln_1.weight", {"e": width}, (width,))
    yield _layered(model, "ln1_b", "ln_1.bias", {"e": width}, (width,))
    yield _layered(model, "w_qkv", "attn.c_attn.weight", {"s": 3, **head, "e": width}, (3 * width, width))
    yield _layered(model, "b_qkv", "attn.c_attn.bias", {"s": 3, **head}, (3 * width,))
    yield _layered(model, "w_o", "attn.c_proj.weight", {"o": width, **head}, (width, width))
    yield _layered(model, "b_o", "attn.c_proj.bias", {"o": width}, (width,))
    yield _layered(model, "ln2_w", "ln_2.weight", {"e": width}, (width,))
    yield _layered(model, "ln2_b", "ln_2.bias", {"e": width}, (width,))
    yield _layered(model, "w_fc", "mlp.c_fc.weight", {"f": 4 * width, "e": width}, (4 * width, width))
    yield _layered(model, "b_fc", "mlp.c_fc.bias", {"f": 4 * width}, (4 * width,))
    yield _layered(model, "w_pr", "mlp.c_proj.weight", {"o": width, "f": 4 * width}, (width, 4 * width))
    yield _layered(model, "b_pr", "mlp.c_proj.bias", {"o": width}, (width,))


def _layered(model: ModelConfig, name: str, local: str, sizes: dict[str, int], shape: tuple[int, ...]) -> Table:
    tensors = tuple(f"transformer.h.{layer}.{local}" for layer in range(model.n_layer))
    return Table(name, {"layer": model.n_layer, **sizes}, tensors, shape)
