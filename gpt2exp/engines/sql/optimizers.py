"""The optimizers as statements: what `gpt2exp.optim` computes with tensors, over `<table>_grad` and `<table>_state`.

Slots are columns of `<table>_state`. The step's scalars, computed by the same `step_scalars` as for every engine, are
rows of `schedule`, one a parameter group (`owner`). The clip is the one row of `clip`. Moments come before weights:
a statement reads what the statements before it wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpt2exp.engines.sql.muon import muon
from gpt2exp.engines.sql.statement import columns, double, statement
from gpt2exp.engines.sql.tables import Table
from gpt2exp.engines.sql.update import Step, TableGroup
from gpt2exp.optim.adamw import AdamWRule
from gpt2exp.optim.base import Clip
from gpt2exp.optim.muon import MuonRule
from gpt2exp.optim.qk_clip import QKClip
from gpt2exp.optim.sgd import SGDRule

CLIP_EPSILON = 1e-6
"""Added to the norm before dividing, as `torch.nn.utils.clip_grad_norm_` does."""


def adamw(group: TableGroup, rule: AdamWRule) -> Iterator[Step]:
    """Moments, then weights."""
    beta1, beta2 = rule.betas
    decayed = "p.w * s.keep" if rule.weight_decay else "p.w"
    for table in group.tables:
        select = f"""
            SELECT {table.keys},
                   {double(beta1)} * v.exp_avg + {double(1 - beta1)} * {group.gradient} AS exp_avg,
                   {double(beta2)} * v.exp_avg_sq + {double(1 - beta2)} * power({group.gradient}, 2) AS exp_avg_sq
            FROM {group.clip}{table.state} v
            """
        yield Step(statement(table.state, f"moments of {table.name}", select, group.join(table)), table.dims)
        select = f"""
            SELECT {table.keys},
                   {decayed} - s.step_size * v.exp_avg
                       / (sqrt(v.exp_avg_sq) / s.second_moment_scale + {double(rule.eps)}) AS w
            FROM schedule s
            JOIN {table.name} p ON s.owner = '{group.name}'
            JOIN {table.state} v USING ({table.keys})
            """
        how = "AdamW with decoupled weight decay" if rule.weight_decay else "AdamW"
        yield Step(statement(table.name, f"{table.name} after {how}", select), table.dims)


def sgd(group: TableGroup, rule: SGDRule) -> Iterator[Step]:
    """The momentum buffer where there is one, then weights."""
    gradient = f"{group.gradient} + {double(rule.weight_decay)} * p.w" if rule.weight_decay else group.gradient
    direction = gradient
    if rule.momentum:
        ahead = f"{gradient} + {double(rule.momentum)} * v.momentum_buffer"
        direction = ahead if rule.nesterov else "v.momentum_buffer"
    for table in group.tables:
        state = f"JOIN {table.state} v USING ({table.keys})\n" if rule.momentum else ""
        if rule.momentum:
            buffer = f"""
                SELECT {table.keys}, {double(rule.momentum)} * v.momentum_buffer + {gradient} AS momentum_buffer
                FROM {group.clip}{table.name} p
                """
            text = statement(table.state, f"momentum of {table.name}", buffer, state + group.join(table))
            yield Step(text, table.dims)
        select = f"""
            SELECT {table.keys}, p.w - s.lr * ({direction}) AS w
            FROM {group.clip}schedule s
            JOIN {table.name} p ON s.owner = '{group.name}'
            """
        text = statement(table.name, f"{table.name} after a step of SGD", select, state + group.join(table))
        yield Step(text, table.dims)


def update(group: TableGroup) -> list[Step]:
    """The statements of one parameter group, in order."""
    rule = group.rule
    if isinstance(rule, AdamWRule):
        return list(adamw(group, rule))
    if isinstance(rule, SGDRule):
        return list(sgd(group, rule))
    assert isinstance(rule, MuonRule), f"{type(rule).__name__} has no SQL form: validation refuses it"
    return list(muon(group, rule))


def gradient_norm(tables: Sequence[Table]) -> Step:
    """`grad_norm`: over all gradients, before clipping."""
    return Step(
        statement("grad_norm", "norm of the whole gradient", f"SELECT {norm(tables)} AS norm"),
        (),
    )


def clip(tables: Sequence[Table], rule: Clip) -> Step:
    """`clip`: what the gradients in scope are multiplied with; NaN where their norm is NaN, never 1."""
    most = double(rule.max_norm)
    select = f"SELECT CASE WHEN norm <= {most} THEN 1e0 ELSE {most} / norm END AS coef"
    of = f"SELECT {norm(tables)} + {double(CLIP_EPSILON)} AS norm"
    return Step(
        statement("clip", "global-norm clip: what gradients are multiplied with", f"{select}\nFROM ({of})"),
        (),
    )


def norm(tables: Sequence[Table]) -> str:
    """Of all gradients of some tables; table after table, so that the order of the sum is fixed."""
    return "sqrt(" + "\n  + ".join(f"(SELECT SUM(g * g) FROM {table.grad})" for table in tables) + ")"


def rescale(table: Table, qk: QKClip) -> Step:
    """QK clip: queries by gamma^balance, keys by gamma^(1 - balance), gamma = threshold / max(threshold, maximum)."""
    gamma = f"{double(qk.threshold)} / GREATEST(q.x, {double(qk.threshold)})"
    return Step(
        statement(
            table.name,
            "QK clip: shrink queries and keys of the heads over the threshold",
            f"""
            SELECT {columns("p", table.dims)},
                   p.w * CASE p.s WHEN 0 THEN power({gamma}, {double(qk.balance)})
                                  WHEN 1 THEN power({gamma}, {double(1 - qk.balance)})
                                  ELSE 1e0 END AS w
            FROM {table.name} p
            JOIN qk_max q ON q.layer = p.layer AND q.h = p.h
            """,
        ),
        table.dims,
    )
