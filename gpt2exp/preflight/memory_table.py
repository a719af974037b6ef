"""docs/memory_16GiB.md, written by `gpt2exp preflight --memory-table`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from gpt2exp.compose import compose
from gpt2exp.config import Config, Precision
from gpt2exp.preflight.memory import CHIP_GIB, CHIP_SHARE, COMPILED, GIB, xla_estimate

MODELS = ("gpt2", "gpt2_medium", "gpt2_large", "gpt2_xl")
OPTIMIZERS = ("adamw", "muonclip")
ROWS = (1, 2, 4, 8)


def document() -> str:
    """The whole page."""
    arms = product(MODELS, OPTIMIZERS)
    configs = {(m, o): compose(["preset=gpt2_fineweb", f"model={m}", f"optimizer={o}"]) for m, o in arms}
    limit = CHIP_SHARE * CHIP_GIB
    fits = "\n".join(_fit_table(configs, precision, limit) for precision in (Precision.bf16, Precision.fp32))
    return HEADER.format(chip=CHIP_GIB, share=CHIP_SHARE, limit=limit) + fits + CHECKED + _compiled_table(configs)


def _fit_table(configs: dict[tuple[str, str], Config], precision: Precision, limit: float) -> str:
    columns = ("model", "optimizer", "resident", *(f"b={rows}" for rows in ROWS), "largest that fits")
    rows = [_fit_row(model, optimizer, cfg, precision, limit) for (model, optimizer), cfg in configs.items()]
    return f"## {precision.name}\n\n{_markdown(columns, rows)}"


def _fit_row(model: str, optimizer: str, cfg: Config, precision: Precision, limit: float) -> list[str]:
    context = cfg.schedule.context_length
    estimates = [xla_estimate(cfg.model, cfg.optimizer, precision, context, rows) for rows in ROWS]
    totals = [estimate.total / GIB for estimate in estimates]
    fitting = [rows for rows, total in zip(ROWS, totals, strict=True) if total <= limit]
    cells = [f"**{total:.1f}**" if total <= limit else f"{total:.1f}" for total in totals]
    return [model, optimizer, f"{estimates[0].resident / GIB:.2f}", *cells, str(max(fitting, default="none"))]


def _compiled_table(configs: dict[tuple[str, str], Config]) -> str:
    columns = ("model", "precision", "b", "compiled", "formula", "formula / compiled")
    return _markdown(columns, list(_compiled_rows(configs)))


def _compiled_rows(configs: dict[tuple[str, str], Config]) -> Iterator[list[str]]:
    for graph in COMPILED:
        cfg = configs[graph.model, OPTIMIZERS[0]]
        context = cfg.schedule.context_length
        formula = xla_estimate(cfg.model, cfg.optimizer, graph.precision, context, graph.rows).temporary / GIB
        ratio = formula / graph.gib
        yield [graph.model, graph.precision.name, str(graph.rows), f"{graph.gib:.2f}", f"{formula:.2f}", f"{ratio:.2f}"]


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


HEADER = """\
# Memory on chips of 16 GiB

Written by `gpt2exp preflight --memory-table`; a test compares the two, so do not edit it by hand.

GiB on one chip: parameters, gradients, optimizer state and the model's causal masks ("resident"), and the largest set
of intermediates alive at once in forward and backward of a micro-batch of b rows of 1,024 tokens. **Bold** fits into
{share:g} x {chip:g} = {limit:.1f} GiB, which is what `gpt2exp preflight` plans with on a TPU v5e.

The numbers come from a formula, not from a TPU: none was used. It was fitted on the graphs that torch_xla 2.9.0
compiled for a CPU (table at the end), by varying layers, heads, vocabulary and rows around GPT-2 124M; gpt2_xl is
extrapolated, and contexts shorter than 1,024 need less than it says. XLA's CPU compiler computes bf16 products in fp32,
so the bf16 figures are upper bounds; a TPU's compiler fuses more and pads more.

With T tokens of context, V vocabulary, C width, H heads and L layers the intermediates are

    fp32: 4 bytes x b x (4 TV + 5 TC + (L + 1)(HTT + 17 TC))      (L instead of L + 1 for b <= 2)
    bf16: 4 bytes x b x (4 TV + 8 TC + L (2 HTT + 20 TC))

The update's own graph is not in it. Try the real batch out: `gpt2exp preflight` makes full-size updates.

"""

CHECKED = """
## Formula and compiled graphs

Intermediates only, in GiB. `compiled` is "Intermediate tensor size" of the compiled graph of forward and backward.

"""
