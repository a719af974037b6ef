"""Muon as joins: all matrices of a parameter group lie in one table and are orthogonalized at once.

A matrix is (mat, r, k): its number, and rows and columns with the shorter side as `r`. A round of Newton-Schulz is
three joins, each with a sum: the Gram matrix, the polynomial of it, and its product with the matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from gpt2exp.engines.sql.statement import Statement, columns, double, statement
from gpt2exp.engines.sql.tables import Table
from gpt2exp.engines.sql.update import Step, TableGroup
from gpt2exp.optim.muon import MomentumForm, MuonRecipe, MuonRule
from gpt2exp.optim.newton_schulz import NORM_FLOOR, coefficients


@dataclass(frozen=True)
class Placement:
    """Where a table's weights are in (mat, r, k), as expressions over its dimensions; `shape` is of one matrix."""

    mat: str
    r: str
    k: str
    shape: tuple[int, int]
    count: int


def placement(table: Table, row_blocks: int, first: int) -> Placement:
    """Matrices numbered from `first`: blocks of a layer beside each other, then the next layer."""
    sizes = dict(list(table.sizes.items())[1:])
    rows, columns_ = table.tensor_shape
    leading = _leading(sizes, row_blocks)
    row_dims = _leading({d: n for d, n in sizes.items() if d not in leading}, rows // row_blocks)
    column_dims = {d: n for d, n in sizes.items() if d not in leading and d not in row_dims}
    shape = (rows // row_blocks, columns_)
    number = _mixed({"layer": table.sizes["layer"], **leading})
    row, column = _mixed(row_dims), _mixed(column_dims)
    r, k = (row, column) if shape[0] <= shape[1] else (column, row)
    mat = f"{first} + {number}" if first else number
    return Placement(mat, r, k, shape, table.sizes["layer"] * row_blocks)


def _leading(sizes: dict[str, int], count: int) -> dict[str, int]:
    """The first dimensions, as many as hold `count` combinations."""
    found: dict[str, int] = {}
    for name, size in sizes.items():
        if prod(found.values()) == count:
            break
        found[name] = size
    assert prod(found.values()) == count, f"{sizes} cannot be cut at {count}"
    return found


def _mixed(sizes: dict[str, int]) -> str:
    """The number of a combination of dimensions, as an expression over `p`."""
    text = ""
    for name, size in sizes.items():
        text = (
            f"({text}) * {size} + p.{name}" if " " in text else f"{text} * {size} + p.{name}" if text else f"p.{name}"
        )
    return text


def muon(group: TableGroup, rule: MuonRule) -> Iterator[Step]:
    """Momentum, direction, Newton-Schulz, weights."""
    recipe, places, first = rule.recipe, [], 0
    for table in group.tables:
        places.append(placement(table, rule.row_blocks, first))
        first += places[-1].count
        yield Step(momentum(group, table, recipe), table.dims)
    rounds = newton_schulz(group.name, recipe)
    directions = "\nUNION ALL\n".join(direction(group, t, p, recipe) for t, p in zip(group.tables, places, strict=True))
    gathered = Statement(f"{group.name}_direction", "directions of all matrices, short side as rows", directions)
    yield Step(rounds[-1], ("mat", "r", "k"), (gathered, *rounds[:-1]))
    for table, place in zip(group.tables, places, strict=True):
        yield Step(weights(group, table, place, rule), table.dims)


def momentum(group: TableGroup, table: Table, recipe: MuonRecipe) -> Statement:
    """The buffer: mu b + g, or the moving average mu b + (1 - mu) g."""
    new = f"{double(recipe.momentum)} * v.momentum_buffer + {share(recipe)}{group.gradient}"
    select = f"SELECT {table.keys}, {new} AS momentum_buffer\nFROM {group.clip}{table.state} v"
    return statement(table.state, f"momentum of {table.name}", select, group.join(table))


def direction(group: TableGroup, table: Table, place: Placement, recipe: MuonRecipe) -> str:
    """What is orthogonalized: the buffer, or with Nesterov the gradient and mu times the buffer."""
    select = f"SELECT {place.mat} AS mat, {place.r} AS r, {place.k} AS k,"
    if not recipe.nesterov:
        return f"{select} p.momentum_buffer AS x\nFROM {table.state} p"
    value = f"{share(recipe)}{group.gradient} + {double(recipe.momentum)} * p.momentum_buffer"
    return f"{select} {value} AS x\nFROM {group.clip}{table.state} p\n{group.join(table)}"


def share(recipe: MuonRecipe) -> str:
    """What a new gradient is multiplied with."""
    return f"{double(1 - recipe.momentum)} * " if recipe.momentum_form is MomentumForm.ema else ""


def newton_schulz(name: str, recipe: MuonRecipe) -> list[Statement]:
    """X <- a X + (b G + c G²) X with G = X Xᵀ, from X of norm 1; the last statement is `<name>_orthogonal`."""
    statements = [
        statement(
            f"{name}_norm",
            "norm of each matrix",
            f"""
            SELECT mat, GREATEST(sqrt(SUM(x * x)), {double(NORM_FLOOR)}) AS x
            FROM {name}_direction
            GROUP BY mat
            """,
        ),
        statement(
            f"{name}_x0",
            "scaled to norm 1",
            f"""
            SELECT d.mat, d.r, d.k, d.x / n.x AS x
            FROM {name}_direction d
            JOIN {name}_norm n ON n.mat = d.mat
            """,
        ),
    ]
    polynomials = coefficients(recipe.polynomial, recipe.ns_steps)
    for i, polynomial in enumerate(polynomials):
        out = f"{name}_orthogonal" if i + 1 == len(polynomials) else f"{name}_x{i + 1}"
        statements += one_round(name, i, polynomial, out)
    return statements


def one_round(name: str, i: int, polynomial: tuple[float, float, float], out: str) -> Iterator[Statement]:
    """Three joins."""
    a, b, c = (double(value) for value in polynomial)
    x, gram, factor = f"{name}_x{i}", f"{name}_gram{i}", f"{name}_factor{i}"
    yield statement(
        gram,
        "G = X Xᵀ",
        f"""
        SELECT p.mat, p.r, q.r AS k, SUM(p.x * q.x) AS x
        FROM {x} p
        JOIN {x} q ON q.mat = p.mat AND q.k = p.k
        GROUP BY p.mat, p.r, q.r
        """,
    )
    yield statement(
        factor,
        "b G + c G²",
        f"""
        SELECT d.mat, d.r, d.k, {b} * d.x + {c} * s.x AS x
        FROM {gram} d
        JOIN (SELECT p.mat, p.r, q.k, SUM(p.x * q.x) AS x
              FROM {gram} p
              JOIN {gram} q ON q.mat = p.mat AND q.r = p.k
              GROUP BY p.mat, p.r, q.k) s ON s.mat = d.mat AND s.r = d.r AND s.k = d.k
        """,
    )
    yield statement(
        out,
        "a X + (b G + c G²) X",
        f"""
        SELECT d.mat, d.r, d.k, {a} * d.x + s.x AS x
        FROM {x} d
        JOIN (SELECT p.mat, p.r, q.k, SUM(p.x * q.x) AS x
              FROM {factor} p
              JOIN {x} q ON q.mat = p.mat AND q.r = p.k
              GROUP BY p.mat, p.r, q.k) s ON s.mat = d.mat AND s.r = d.r AND s.k = d.k
        """,
    )


def weights(group: TableGroup, table: Table, place: Placement, rule: MuonRule) -> Statement:
    """W <- (1 - lr decay) W - lr scale X."""
    return statement(
        table.name,
        f"{table.name} after Muon: along the orthogonalized direction",
        f"""
        SELECT {columns("p", table.dims)}, p.w * s.keep - s.lr * {double(rule.scale_of(place.shape))} * u.x AS w
        FROM schedule s
        JOIN {table.name} p ON s.owner = '{group.name}'
        JOIN {group.name}_orthogonal u ON u.mat = {place.mat} AND u.r = {place.r} AND u.k = {place.k}
        """,
    )
