"""Every statement of an update and of an evaluation, in order, for people."""

from __future__ import annotations

from collections.abc import Iterator

from gpt2exp.config import Config
from gpt2exp.engines.sql import program
from gpt2exp.engines.sql.model import evaluation, objective
from gpt2exp.engines.sql.optimizers import clip, gradient_norm, rescale, update
from gpt2exp.engines.sql.statement import Statement
from gpt2exp.engines.sql.tables import Table, tables
from gpt2exp.engines.sql.update import Step, TableGroup, by_tables
from gpt2exp.models.inventory import parameters
from gpt2exp.optim.base import TensorInfo
from gpt2exp.optim.param_groups import assign
from gpt2exp.optim.qk_clip import QKClip
from gpt2exp.optim.registry import optimizers


def statements(cfg: Config) -> list[Statement]:
    """The model up to its loss, the gradients, the optimizer, and what an evaluation adds.

    Each statement reads `batch`, the weights and the statements before it. Several micro-batches repeat the part up
    to the gradients and add them up. The name of the table that a statement fills is in `name`.
    """
    optimizer, all_tables = optimizers()[cfg.optimizer.kind], tables(cfg.model)
    rule, qk = optimizer.clip(cfg.optimizer), optimizer.qk_clip(cfg.optimizer)
    tensors = [TensorInfo(p.name, p.shape) for p in parameters(cfg.model)]
    owned = assign(optimizer.groups(cfg.optimizer, cfg.model.n_head), tensors)
    groups = [by_tables(g, all_tables, bool(rule.max_norm) and g.name.startswith(rule.scope)) for g in owned]
    scope = [table for group in groups if group.clipped for table in group.tables]
    loss = objective(cfg.model)
    return [
        *loss,
        *(gradient(table) for table in all_tables),
        *in_order(gradient_norm(all_tables)),
        *(in_order(clip(scope, rule)) if scope else ()),
        *(s for group in groups for s in of_group(group)),
        *(qk_statements(cfg, qk, all_tables) if qk else ()),
        *(s for s in evaluation(cfg.model) if s not in loss),
    ]


def gradient(table: Table) -> Statement:
    """As the gradient library reads it, after the statements of the loss."""
    return Statement(table.grad, f"gradient of the loss with respect to {table.name}", program.gradient(table, "g"))


def of_group(group: TableGroup) -> Iterator[Statement]:
    """A parameter group's update."""
    for step in update(group):
        yield from in_order(step)


def in_order(step: Step) -> tuple[Statement, ...]:
    """A step with what it reads first."""
    return (*step.before, step.statement)


def qk_statements(cfg: Config, qk: QKClip, all_tables: tuple[Table, ...]) -> Iterator[Statement]:
    """The largest logits and the rescaling."""
    before, select = program.largest_logits(cfg.model, qk.max_logit)
    known = {statement.name for statement in objective(cfg.model)}
    yield from (statement for statement in before if statement.name not in known)
    yield Statement("qk_max", "largest logit of each head, over all micro-batches, before the update", select)
    for table in all_tables:
        if table.name in ("w_qkv", "b_qkv"):
            yield rescale(table, qk).statement
