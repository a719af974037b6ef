"""What `gpt2exp verify hardware=...` prints: what was compared with what, table by table, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from rich.console import Console
from rich.table import Table

from gpt2exp.engines.base import UpdateRecord
from gpt2exp.errors import NumericalError
from gpt2exp.verification.engine_parity import Parity, Row

UNLIMITED = 10_000
"""Columns of a line: more than any table needs."""
MARK = "<--"
REPORTED = ("loss", "grad norm", "clip coef", "QK maximum")
"""Quantities of an update that are shown with their difference."""
OF_UPDATES = ("step", *REPORTED, "lr", "gated", "clipped heads", "compilations")
OF_EVALUATION = ("val loss", "wrong tokens", "target tokens")
OF_ALL = (*OF_UPDATES, *OF_EVALUATION)
"""Quantities that are not a set of tensors."""
NUMBER_COLUMNS = (
    "step",
    "lr factor",
    "loss",
    "|diff|",
    "grad norm",
    "|diff|",
    "clip coef",
    "|diff|",
    "QK max",
    "|diff|",
)
TENSOR_COLUMNS = ("step", "quantity", "|diff|", "of largest", "tolerance", "furthest out", "")


def conclude(subject: str, parity: Parity) -> None:
    """Print every table and the verdict.

    Raises:
        NumericalError: a comparison is out of tolerance; names the worst.
    """
    for title, table in tables(parity):
        print(f"\n{title}")
        print(text_of(table), end="")
    worst, total = parity.worst, len(parity.rows)
    if worst is not None:
        raise NumericalError(
            f"verify {subject}: {len(parity.failures)} of {total} comparisons out of tolerance; worst: {worst}"
        )
    print(f"\nall {total} comparisons within tolerance")


def executor_lines(reference: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Both executors, each on a line; what they share first."""
    shared = [key for key, setting in reference.items() if key in other and other[key] == setting]
    for name, executor, keys in (
        ("both", reference, shared),
        ("reference", reference, [key for key in reference if key not in shared]),
        ("other", other, [key for key in other if key not in shared]),
    ):
        yield f"{name:<9}  {', '.join(f'{key} {executor[key]}' for key in keys) or '-'}"


def tables(parity: Parity) -> Iterator[tuple[str, Table]]:
    """Titles and tables, in the order of the work."""
    tensors = [row for row in parity.rows if row.quantity not in OF_ALL]
    yield "tolerances", tolerance_table(parity)
    yield (
        "before the first update: weights, and gradients of one accumulated update",
        tensor_table([row for row in tensors if row.step == 0]),
    )
    yield "updates (the reference's numbers, and how far the other's are from them)", update_table(parity)
    updated = "weights and optimizer state after each update"
    title = f"gradients before, {updated}" if parity.tables else updated
    yield title, tensor_table([row for row in tensors if row.step > 0])
    if parity.tables:
        yield "the same by table and step: largest difference as a share of a tensor's largest value", by_table(parity)
    yield "evaluation before and after", evaluation_table([row for row in parity.rows if row.quantity in OF_EVALUATION])


def tolerance_table(parity: Parity) -> Table:
    """Every bound and its reason."""
    rows = [(name, str(bound), bound.reason) for name, bound in parity.tolerances.bounds.items()]
    return table(("quantity", "at most", f"why, {parity.tolerances.name}"), rows)


def tensor_table(rows: Sequence[Row]) -> Table:
    """One line a set of tensors, with the tensor that is furthest out."""
    lines = [
        (
            str(row.step),
            row.quantity,
            small(row.absolute),
            small(row.of_largest),
            str(row.bound),
            part(row),
            mark([row]),
        )
        for row in rows
    ]
    return table(TENSOR_COLUMNS, lines)


def by_table(parity: Parity) -> Table:
    """One line a table and quantity, a column a step."""
    compared = {(row.quantity, row.step): row.shares for row in parity.rows if row.step and row.quantity not in OF_ALL}
    steps = [record.step for record in parity.records]
    lines = []
    for name, tensors in parity.tables.items():
        for quantity in dict.fromkeys(quantity for quantity, _ in compared):
            found = [[compared[quantity, step][t] for t in tensors if t in compared[quantity, step]] for step in steps]
            if any(found):
                lines.append((name, quantity, *(small(max(shares, default=inf)) for shares in found)))
    return table(("table", "quantity", *map(str, steps)), lines)


def update_table(parity: Parity) -> Table:
    """One line an update: numbers with their differences, counts, compilations."""
    found = {(row.step, row.quantity): row for row in parity.rows if row.quantity in OF_UPDATES}
    columns = (*NUMBER_COLUMNS, "clipped", "gated", "compilations", "")
    lines = [
        update_cells(record, factor, compiled, [found[key] for key in found if key[0] == record.step])
        for record, factor, compiled in zip(parity.records, parity.lr_factors, parity.compiles, strict=True)
    ]
    return table(columns, lines)


def update_cells(record: UpdateRecord, factor: float, compiled: int, rows: Sequence[Row]) -> tuple[str, ...]:
    """The cells of one update; a count that differs is shown with the other's."""
    by_name = {row.quantity: row for row in rows}
    largest = max(record.qk.maxima) if record.qk else None
    values = (record.loss, record.grad_norm, record.clip_coef, largest)
    numbers = [
        cell for name, number in zip(REPORTED, values, strict=True) for cell in (value(number), gap(by_name.get(name)))
    ]
    return (
        str(record.step),
        f"{factor:g}",
        *numbers,
        both(by_name.get("clipped heads")),
        both(by_name["gated"]),
        str(compiled),
        mark(rows),
    )


def evaluation_table(rows: Sequence[Row]) -> Table:
    """Values of both engines."""
    lines = [
        (str(row.step), row.quantity, *map(value, (row.reference, row.found)), gap(row), str(row.bound), mark([row]))
        for row in rows
    ]
    return table(("step", "quantity", "reference", "other", "|diff|", "tolerance", ""), lines)


def table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    """Columns of figures are set flush right."""
    rows = list(rows)
    made = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        figures = all(row[index][:1].isdigit() or row[index] in ("-", "inf") for row in rows)
        made.add_column(column, justify="right" if figures else "left")
    for row in rows:
        made.add_row(*row)
    return made


def text_of(made: Table) -> str:
    """Lines as wide as they are: where a terminal is narrower it wraps them, and no figure is cut."""
    console = Console(highlight=False, markup=False, emoji=False, width=UNLIMITED)
    with console.capture() as printed:
        console.print(made)
    return "".join(f"{line.rstrip()}\n" for line in printed.get().splitlines())


def gap(row: Row | None) -> str:
    """The largest difference; a dash where nothing was compared."""
    return "-" if row is None else small(row.absolute)


def both(row: Row | None) -> str:
    """A count, or the two that should be one."""
    if row is None:
        return "-"
    return value(row.reference) if row.passed else f"{value(row.reference)} | {value(row.found)}"


def part(row: Row) -> str:
    """The tensor that is furthest out; nothing where all are equal."""
    return row.part if row.measured else ""


def value(number: float | None) -> str:
    """Six significant digits; whole numbers as they are."""
    if number is None:
        return "-"
    return str(int(number)) if number.is_integer() else f"{number:.6g}"


def small(difference: float) -> str:
    """A difference: its size, not its digits."""
    return "0" if difference == 0 else f"{difference:.1e}"


def mark(rows: Iterable[Row]) -> str:
    """What is out of tolerance."""
    names = [row.quantity for row in rows if not row.passed]
    return f"{MARK} {', '.join(names)}" if names else ""
