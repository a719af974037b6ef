"""`gpt2exp audit`: the model's parameters, matrices and traces, checked against its code.

`--write FOLDER` also writes them as STOCK_ARCHITECTURE.md and stock_weight_matrices.csv. The texts are
computed from the shape alone, so they are the same on every machine.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gpt2exp import atomic
from gpt2exp.config import ModelConfig, ModelSource
from gpt2exp.errors import ConfigError, RefusedError, StorageError
from gpt2exp.models import inventory, upstream
from gpt2exp.models.inventory import Parameter, Trace
from gpt2exp.models.upstream import UPSTREAM, SourceFile

if TYPE_CHECKING:
    from torch import nn

ARCHITECTURE_FILE = "STOCK_ARCHITECTURE.md"
MATRICES_FILE = "stock_weight_matrices.csv"
PLAIN_WIDTH = 120


@dataclass(frozen=True)
class Table:
    """A titled table, for the terminal and for Markdown; columns named in `numbers` align right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()


def main(arguments: list[str]) -> int:
    """Print the architecture of the composed model; write the two documents where asked.

    Raises:
        ConfigError: overrides or options that make no sense.
        RefusedError: a wrong model file, or a model that differs from its inventory.
        StorageError: the folder cannot be written.
    """
    from gpt2exp.compose import compose

    options = _options(arguments)
    model = compose(options.overrides).model
    checked = check(model)
    _print(model, checked)
    if options.write is not None:
        for path in write_documents(Path(options.write), model):
            print(f"wrote {path}")
    return 0


def check(model: ModelConfig) -> str:
    """Build the model's own code on torch's meta device (no weights) and compare it with the inventory.

    Returns:
        One line: against whose code the figures were checked.

    Raises:
        RefusedError: a model file that is not the pinned one, or any difference.
    """
    source = upstream.find(model.path) if model.source is ModelSource.llmc else None
    found = differences(model, _skeleton(model, source))
    if found:
        raise RefusedError(f"audit: the model is not what its inventory says: {'; '.join(found)}")
    if source is not None:
        return f"Checked against {source.path}, {UPSTREAM.repository} {UPSTREAM.commit}, SHA256 {source.sha256}."
    if model.source is ModelSource.reference:
        return "Checked against the reference GPT."
    return (
        "The figures come from the reference GPT's inventory, checked against the reference GPT: upstream's "
        f"file is not on this machine (`gpt2exp doctor` says how to get it). It belongs at "
        f"{upstream.cached_path()}"
    )


def differences(model: ModelConfig, module: nn.Module) -> list[str]:
    """Names, shapes, order and tie of `module` against the inventory: one text a difference."""
    expected = [(parameter.name, parameter.shape) for parameter in inventory.parameters(model)]
    found = [(name, tuple(parameter.shape)) for name, parameter in module.named_parameters()]
    problems = [f"{name} {_by(shape)} is missing" for name, shape in expected if (name, shape) not in found]
    problems += [f"{name} {_by(shape)} is not expected" for name, shape in found if (name, shape) not in expected]
    if not problems and found != expected:
        problems.append("the parameters come in another order")
    entries = {name for name, entry in module.state_dict(keep_vars=True).items() if entry.dim() == 2}
    if entries != {matrix.name for matrix in inventory.matrices(model)}:
        problems.append("the two-dimensional entries of the state dict differ")
    if not problems and module.get_parameter(inventory.LM_HEAD) is not module.get_parameter(inventory.WTE):
        problems.append("the output head is not tied to wte")
    return problems


def write_documents(folder: Path, model: ModelConfig) -> tuple[Path, Path]:
    """Write both documents into `folder`, which is created.

    Raises:
        StorageError: the disk refuses.
    """
    architecture, matrices = folder / ARCHITECTURE_FILE, folder / MATRICES_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write_text(architecture, architecture_markdown(model))
        atomic.write_text(matrices, matrices_csv(model))
    except OSError as error:
        raise StorageError(f"cannot write into {folder}: {error.strerror or error}") from error
    return architecture, matrices


def matrices_csv(model: ModelConfig) -> str:
    """The trace level as CSV, one row a trace."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        ["trace", "kind", "block", "entry", "stored_in", "row_start", "row_stop", "shape", "parameters",
         "unique", "role", "adamw_owner", "matrix_optimizer_owner"]
    )  # fmt: skip
    writer.writerows(_csv_row(trace) for trace in inventory.traces(model))
    return file.getvalue()


def architecture_markdown(model: ModelConfig) -> str:
    """STOCK_ARCHITECTURE.md of `model`."""
    sections = [
        HEADER,
        _source_text(model),
        _markdown(shape_table(model)),
        FORWARD.format(head=model.n_embd // model.n_head),
        INITIALISATION.format(residual_std=f"{0.02 / math.sqrt(2 * model.n_layer):.6f}", depth=2 * model.n_layer),
        _markdown(parameter_table(model)),
        _markdown(level_table(model)),
        LEVELS,
        _markdown(trace_table(model)),
        TRACES,
        _markdown(owner_table(model)),
        OWNERS,
    ]
    return "\n".join(sections)


def shape_table(model: ModelConfig) -> Table:
    """The numbers that define the model, and its size."""
    rows = (
        ("layers (n_layer)", f"{model.n_layer:,}"),
        ("heads (n_head)", f"{model.n_head:,}"),
        ("width (n_embd)", f"{model.n_embd:,}"),
        ("width of a head", f"{model.n_embd // model.n_head:,}"),
        ("hidden width of the MLP", f"{4 * model.n_embd:,}"),
        ("positions (block_size)", f"{model.block_size:,}"),
        ("vocabulary (vocab_size)", f"{model.vocab_size:,}"),
        ("biases", "yes" if model.bias else "no"),
        ("parameters", f"{inventory.parameter_count(model):,}"),
    )
    return Table("Shape", ("quantity", "value"), rows, frozenset({"value"}))


def parameter_table(model: ModelConfig) -> Table:
    """Every parameter, those of the blocks once with their number of copies."""
    listed = [*inventory.parameters(model), inventory.matrices(model)[-1]]
    rows = tuple(_parameter_row(model, parameter) for parameter in listed if not parameter.block)
    columns = ("parameter", "shape", "copies", "scalars", "role")
    return Table("Parameters", columns, rows, frozenset({"shape", "copies", "scalars"}))


def level_table(model: ModelConfig) -> Table:
    """How many entries each level has; scalars count tied weights once."""
    traces = inventory.traces(model)
    rows = (
        _level_row("parameters (named_parameters)", inventory.parameters(model)),
        _level_row("two-dimensional entries by name", inventory.matrices(model)),
        _level_row("traces", [trace.matrix for trace in traces], [trace.size for trace in traces]),
    )
    columns = ("level", "entries", "unique", "unique in blocks", "scalars")
    return Table("Levels", columns, rows, frozenset(columns[1:]))


def trace_table(model: ModelConfig) -> Table:
    """The traces of block 0 and those outside the blocks."""
    rows = tuple(
        (trace.name, trace.matrix.name, f"{trace.start}:{trace.stop}", _by(trace.shape), trace.role)
        for trace in inventory.traces(model)
        if not trace.matrix.block
    )
    columns = ("trace", "entry", "rows", "shape", "role")
    return Table("Traces", columns, rows, frozenset({"rows", "shape"}))


def owner_table(model: ModelConfig) -> Table:
    """Tensors and scalars of each optimizer group, under AdamW and under a matrix optimizer."""
    parameters = inventory.parameters(model)
    rows = (
        *_owner_rows("adamw", parameters, lambda parameter: parameter.adamw_owner),
        *_owner_rows("matrix optimizer", parameters, lambda parameter: parameter.matrix_owner),
    )
    columns = ("optimizer", "owner", "tensors", "scalars")
    return Table("Optimizer owners", columns, rows, frozenset({"tensors", "scalars"}))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog="gpt2exp audit", description=(__doc__ or "").split(": ", 1)[1])
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for training: model=gpt2")
    parser.add_argument("--write", metavar="FOLDER", help=f"write {ARCHITECTURE_FILE} and {MATRICES_FILE}")
    return parser.parse_intermixed_args(arguments)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"audit: {message}; see gpt2exp audit --help")


def _skeleton(model: ModelConfig, source: SourceFile | None) -> nn.Module:
    import torch

    from gpt2exp.models import reference

    with torch.device("meta"):
        return upstream.build(model, source) if source is not None else reference.GPT(model)


def _print(model: ModelConfig, checked: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False, markup=False)
    console.print(f"{model.label}: {inventory.parameter_count(model):,} parameters (source {model.source.value})")
    for table in (shape_table(model), parameter_table(model), level_table(model), owner_table(model)):
        shown: Any = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for column in table.columns:
            shown.add_column(column, justify="right" if column in table.numbers else "left", overflow="fold")
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
    console.print(checked, soft_wrap=True)


def _markdown(table: Table) -> str:
    rules = ["--:" if column in table.numbers else "---" for column in table.columns]
    lines = [table.columns, rules, *table.rows]
    return "\n".join([f"## {table.title}", "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def _parameter_row(model: ModelConfig, parameter: Parameter) -> tuple[str, ...]:
    copies = 1 if parameter.block is None else model.n_layer
    blocks = "h.0" if model.n_layer == 1 else f"h.{{0..{model.n_layer - 1}}}"
    scalars = f"{copies * parameter.size:,}" if parameter.unique else "(tied)"
    name = parameter.name.replace("h.0", blocks)
    return name, _by(parameter.shape), f"{copies}", scalars, parameter.role


def _level_row(title: str, entries: Sequence[Parameter], sizes: Iterable[int] | None = None) -> tuple[str, ...]:
    """`sizes` are the scalars of each entry where entries are parts of a parameter."""
    counted = zip(entries, sizes or [entry.size for entry in entries], strict=True)
    unique = [entry for entry in entries if entry.unique]
    inside = [entry for entry in unique if entry.block is not None]
    scalars = sum(size for entry, size in counted if entry.unique)
    return title, f"{len(entries)}", f"{len(unique)}", f"{len(inside)}", f"{scalars:,}"


def _owner_rows(
    optimizer: str, parameters: Sequence[Parameter], owner_of: Callable[[Parameter], str]
) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for owner in dict.fromkeys(owner_of(parameter) for parameter in parameters):
        owned = [parameter.size for parameter in parameters if owner_of(parameter) == owner]
        rows.append((optimizer, owner, f"{len(owned)}", f"{sum(owned):,}"))
    return rows


def _csv_row(trace: Trace) -> list[str | int]:
    matrix = trace.matrix
    block = "" if matrix.block is None else matrix.block
    unique = "yes" if matrix.unique else "no"
    return [
        trace.name, trace.kind, block, matrix.name, matrix.stored_in, trace.start, trace.stop,
        _by(trace.shape), trace.size, unique, trace.role, matrix.adamw_owner, matrix.matrix_owner,
    ]  # fmt: skip


def _by(shape: Sequence[int]) -> str:
    return "x".join(str(length) for length in shape)


def _source_text(model: ModelConfig) -> str:
    text = UPSTREAM_SOURCE.format(pin=UPSTREAM) if model.bias else REFERENCE_SOURCE
    return f"## Source\n\n{text}"


HEADER = """\
# Stock architecture

Written by `gpt2exp audit --write FOLDER`; a test compares it with the model, so do not edit it by hand.
"""

UPSTREAM_SOURCE = """\
`{pin.file}` of [{pin.repository}](https://github.com/{pin.repository}) at commit
`{pin.commit}`, SHA256
`{pin.sha256}`.

The file is executed byte for byte as published and never patched. The reference GPT
(`gpt2exp/models/reference.py`) has the same parameter names, shapes, initial weights and numerics.
"""

REFERENCE_SOURCE = """\
The reference GPT (`gpt2exp/models/reference.py`) without biases: nanoGPT's form, which upstream's file does
not have.
"""

FORWARD = """\
## Forward pass

```
x = wte[token] + wpe[position]
for each block:
    q, k, v = c_attn(ln_1(x))
    x = x + attn.c_proj(softmax(q k^T / sqrt({head}), past and present only) v)
    x = x + mlp.c_proj(gelu(c_fc(ln_2(x))))
logits = ln_f(x) wte^T
```

Each head attends over its own {head} columns of q, k and v. GELU is the tanh approximation, norms use
eps 1e-5, and there is no dropout. The loss is the mean cross-entropy in nats.
"""

INITIALISATION = """\
## Initialisation

Embeddings and linear weights are drawn from N(0, 0.02^2); the two projections that write into the
residual stream (attn.c_proj, mlp.c_proj) from N(0, {residual_std}^2), which is 0.02 / sqrt({depth}).
Biases start at 0, norm scales at 1. All draws come from the model's own generator in the order wte, wpe,
then in each block attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj. Upstream seeds it with 42; another
`seed` reseeds it and applies the same initialisation again.
"""

LEVELS = """\
The output head is wte under a second name: it counts as an entry, but is not unique, and holds no scalars
of its own.
"""

TRACES = """\
A trace is a matrix with a spectrum of its own: the packed attn.c_attn is cut into W_Q, W_K and W_V.
Rows are those of the stored matrix, whose shape is outputs x inputs. The other blocks repeat block 0 with
their own number; stock_weight_matrices.csv lists every trace.
"""

OWNERS = """\
`adamw decay` and `adamw no_decay` are upstream's AdamW groups: weight decay touches every tensor of two or
more dimensions, embeddings included. A matrix optimizer such as Muon updates the hidden matrices, c_attn as
one packed matrix, and leaves the auxiliary tensors to AdamW.
"""
