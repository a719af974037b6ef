"""A table: text for people, and the same rows in full precision for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpt2exp.report.cells import MISSING, NOT_FINITE, is_number

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """`rows` are text, one cell a column; `data` are the CSV's rows, where an empty field is a missing value.

    A recorded value that is not finite is `nan` or `inf` in the CSV, and said in words in the text.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    data: tuple[Record, ...] = ()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.key

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Columns of figures: they are set flush right."""
        columns = [[row[i] for row in self.rows] for i in range(len(self.columns))]
        return tuple(
            any(map(is_number, cells)) and all(cell in (MISSING, NOT_FINITE) or is_number(cell) for cell in cells)
            for cells in columns
        )

    @property
    def csv(self) -> str:
        """CSV text: floats in the shortest form that reads back to the same value."""
        columns = list(dict.fromkeys(key for record in self.data for key in record))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.data)
        return text.getvalue()


def without_empty(
    columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...], *optional: str
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows, less those `optional` columns in which nothing stands."""
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    empty = {column for column in optional if all(row[column] == MISSING for row in named)}
    return chosen([(column, column not in empty) for column in columns], named)


def chosen(
    columns: Iterable[tuple[str, bool]], rows: Iterable[Mapping[str, str]]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The columns that are wanted, and their cells of each row."""
    kept = tuple(column for column, wanted in columns if wanted)
    return kept, tuple(tuple(row[column] for column in kept) for row in rows)
