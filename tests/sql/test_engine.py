"""What an engine owes a run, kept by the SQL engine: exact bits, gates, copies, limits, clear errors."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

pytest.importorskip("ddxdb")

from both import ADAMW, HOSTS, MUONCLIP, SGD, both, same_bits, same_states

from gpt2exp.data.windows import Window
from gpt2exp.engines.base import EngineState
from gpt2exp.engines.sql.arrays import keys_of, to_column, to_tensors
from gpt2exp.engines.sql.forms import FORMS
from gpt2exp.engines.sql.hosts import build_host
from gpt2exp.engines.sql.statement import Statement
from gpt2exp.engines.sql.tables import tables
from gpt2exp.engines.sql.update import Step
from gpt2exp.errors import ConfigError, RefusedError
from gpt2exp.models.inventory import parameters
from gpt2exp.optim.registry import optimizers

pytestmark = pytest.mark.sql


def windows(count):
    """Batches that hold very different tokens: a plan must not remember the smallest and the largest."""
    rng = np.random.default_rng(3)
    for u in range(count):
        low = 60 if u % 2 else 5 * (u % 3)
        tokens = rng.integers(low, min(65, low + 6 + 12 * (u % 4)), (4, 17))
        yield Window(np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:]))


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("rows", [2, 4])
def test_replayed_plans_are_the_rewritten_statements_to_the_bit(host, rows):
    replaying, rewriting = (both(host, *MUONCLIP, rows=rows, replay=replay) for replay in (True, False))
    for u, window in enumerate(windows(6)):
        for pair in (replaying, rewriting):
            pair.sql.update(u + 1, window, 1.0)
        assert same_states(replaying.sql.state(), rewriting.sql.state()), f"step {u + 1}"
    assert replaying.sql.drain() == rewriting.sql.drain()
    assert rewriting.sql.gradients_of.replays == 0
    assert replaying.sql.gradients_of.replays == 6 * (4 // rows) - 2


@pytest.mark.parametrize("host", HOSTS)
def test_a_state_continues_exactly_in_another_engine(host):
    whole, first, second = (both(host, *MUONCLIP) for _ in range(3))
    whole.step_sql(5)
    first.step_sql(3)
    second.sql.load(first.sql.state())
    second.step_sql(2, first=3)
    assert same_states(whole.sql.state(), second.sql.state())
    assert whole.sql.drain()[3:] == second.sql.drain()


def test_evaluating_and_sampling_change_nothing():
    watched, plain = (both("duckdb", *ADAMW) for _ in range(2))
    for u in range(5):
        watched.step_sql(1, first=u)
        watched.sql.evaluate([watched.window(9)])
        watched.sql.logits(np.arange(u + 1))
    plain.step_sql(5)
    assert same_states(watched.sql.state(), plain.sql.state())


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("overrides", [SGD, ADAMW, MUONCLIP], ids=lambda o: o[0])
def test_nan_in_a_gradient_moves_no_bit(host, overrides, monkeypatch):
    pair = both(host, *overrides)
    pair.step_sql(1)
    before, run = pair.sql.state(), pair.sql.gradients_of.run

    def poisoned(steps):
        loss, columns = run(steps)
        columns[0][3] = math.nan
        return loss, columns

    monkeypatch.setattr(pair.sql.gradients_of, "run", poisoned)
    pair.step_sql(1, first=1)
    monkeypatch.undo()
    after = pair.sql.state()
    assert same_bits(before.weights, after.weights) and same_bits(before.slots, after.slots) and after.step == 2
    good, bad = pair.sql.drain()
    assert not good.gated and bad.gated and bad.clip_coef == 1.0 and math.isnan(bad.grad_norm)
    pair.step_sql(1, first=2)
    (record,) = pair.sql.drain()
    assert not record.gated and math.isfinite(record.loss)


@pytest.mark.parametrize("host", HOSTS)
def test_a_loss_that_is_not_finite_is_gated(host):
    """The gradient of such a loss may well be finite."""
    pair = both(host, *SGD)
    state = pair.sql.state()
    broken = {name: array.copy() for name, array in state.weights.items()}
    broken["transformer.ln_f.weight"][0] = math.nan
    pair.sql.load(EngineState(0, broken, state.slots))
    pair.step_sql(1)
    assert pair.sql.drain()[0].gated
    assert same_bits(pair.sql.weights(), broken)


@pytest.mark.parametrize("host", HOSTS)
def test_tables_hold_copies(host):
    pair = both(host, *SGD)
    given = {name: array.copy() for name, array in pair.sql.weights().items()}
    pair.sql.load(EngineState(0, given, {}))
    kept = {name: array.copy() for name, array in given.items()}
    for array in given.values():
        array += 1.0
    assert same_bits(pair.sql.weights(), kept)
    out = pair.sql.weights()
    for array in out.values():
        array += 1.0
    assert same_bits(pair.sql.weights(), kept)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("bias", [False, True])
def test_every_bit_goes_through_tables(host, bias):
    cfg = both(host, *SGD, f"model.bias={str(bias).lower()}", "model.n_layer=2").cfg
    rng = np.random.default_rng(0)
    tensors = {p.name: rng.integers(0, 2**62, p.shape).view(np.float64) for p in parameters(cfg.model)}
    odd = tensors["transformer.wte.weight"].reshape(-1)
    odd[:6] = [-0.0, 5e-324, -math.inf, math.inf, 1.7976931348623157e308, math.nan]
    database, back = build_host(host), {}
    for table in tables(cfg.model):
        database.load(table.name, table.dims, {**keys_of(table), "w": to_column(table, tensors)})
        rows = database.fetch(f"SELECT {table.keys}, w FROM {table.name} ORDER BY {table.keys}")
        back.update(to_tensors(table, rows["w"]))
        assert all((rows[key] == column).all() for key, column in keys_of(table).items())
    database.close()
    assert same_bits({name: back[name] for name in tensors}, tensors)


def test_the_schedule_holds_the_bits_of_step_scalars():
    pair = both("duckdb", *ADAMW)
    pair.step_sql(3)
    rows = pair.sql.host.fetch("SELECT * FROM schedule")
    for i, group in enumerate(pair.sql.groups):
        expected = group.rule.step_scalars(3, 0.75)
        assert rows["owner"][i] == group.name
        assert {name: float(rows[name][i]) for name in expected} == expected


@pytest.mark.parametrize("host", HOSTS)
def test_no_intermediate_table_is_quadratic_in_the_batch(host):
    def largest(rows):
        pair = both(host, *SGD, f"schedule.tokens_per_step={16 * rows}", "data.allow_repeat=true", rows=rows)
        backend, sizes = pair.sql.host.backend, []
        materialize = backend.materialize

        def counting(name, plan):
            materialize(name, plan)
            sizes.append(int(pair.sql.host.fetch(f'SELECT COUNT(*) AS n FROM "{name}"')["n"][0]))

        backend.materialize = counting
        pair.step_sql(1)
        return max(sizes)

    small, large = largest(8), largest(32)
    assert large <= 4 * small


@pytest.mark.parametrize("host", HOSTS)
def test_a_broken_statement_is_named_with_its_table(host):
    database = build_host(host)
    with pytest.raises(RefusedError, match=rf"{host} failed at table made_up: .*nowhere.*SELECT 1 AS x FROM nowhere"):
        database.store(Step(Statement("made_up", "", "SELECT 1 AS x FROM nowhere"), ()))
    database.close()


def test_a_broken_gradient_is_named_with_its_table():
    pair = both("duckdb", *SGD)
    pair.step_sql(1)
    broken = Step(Statement("wte_grad", "", "SELECT token, e, grad(loss, w) AS value FROM wte"), ("token", "e"))
    with pytest.raises(RefusedError, match=r"duckdb failed at table wte_grad: .*; the statement is: SELECT token"):
        pair.sql.gradients_of.run([broken])


def test_duckdb_loads_nothing_from_outside():
    pair = both("duckdb", *SGD)
    pair.step_sql(1)
    loaded = pair.sql.host.fetch("SELECT install_mode FROM duckdb_extensions() WHERE loaded")["install_mode"]
    assert set(loaded) == {"STATICALLY_LINKED"}


def test_a_foreign_state_is_refused_before_anything_changes():
    pair = both("duckdb", *ADAMW)
    before = pair.sql.state()
    weights = {**before.weights, "transformer.wpe.weight": np.zeros((3, 3))}
    with pytest.raises(ConfigError, match=r"weight transformer\.wpe\.weight: found float64\[3, 3\]"):
        pair.sql.load(EngineState(1, weights, before.slots))
    assert same_states(before, pair.sql.state())


def test_every_shipped_optimizer_has_a_form():
    assert set(FORMS) == set(optimizers())


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ddxdb", None)
    with pytest.raises(RefusedError, match=r"pip install 'gpt2exp\[sql\]'"):
        build_host("duckdb")
