"""Plans of DataFusion that outlive the rows they were made for: what they read is always what is there now."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ddxdb")

import pyarrow as pa

from gpt2exp.engines.sql.chains import Chain, Fill
from gpt2exp.engines.sql.hosts import Deadline, build_host
from gpt2exp.engines.sql.live_tables import BATCH_ROWS, Session
from gpt2exp.engines.sql.unions import ordered, taken_apart
from gpt2exp.errors import RefusedError, StoppedError

pytestmark = pytest.mark.sql


def numbers(*values, name="x"):
    return pa.table({"i": pa.array(np.arange(len(values), dtype=np.int32)), name: np.array(values, dtype=np.float64)})


def chain(session, *queries, deadline=None):
    fills = [Fill(name, (sql,)) for name, sql in queries[:-1]]
    return Chain(session, deadline or Deadline(), fills, [Fill("read", (queries[-1],))])


def column(rows, name="x"):
    return rows.column(name).to_pylist()


def test_a_plan_reads_the_rows_that_are_there_when_it_runs():
    session = Session()
    table = session.put("a", numbers(1, 2, 3))
    squares = chain(session, ("b", "SELECT i, x * x AS x FROM a"), "SELECT SUM(x) AS x FROM b WHERE i > 0")
    assert column(*squares.run()) == [13]
    table.rows = numbers(4, 5, 6, 7)
    assert column(*squares.run()) == [25 + 36 + 49]
    table.rows = numbers(4)
    assert column(*squares.run()) == [None]


def test_large_and_filtered_tables_keep_the_order_of_their_rows():
    session = Session()
    rows = 3 * BATCH_ROWS + 1
    session.put("a", numbers(*range(rows)))
    (found,) = chain(session, f"SELECT x FROM a WHERE i >= 5 AND i < {rows - 1}").run()
    assert column(found) == list(range(5, rows - 1))


def test_tables_of_a_chain_are_its_own():
    session = Session()
    session.put("a", numbers(1, 2))
    doubled = chain(session, ("b", "SELECT i, 2 * x AS x FROM a"), "SELECT x FROM b ORDER BY i")
    doubled.run()
    with pytest.raises(Exception, match=r"table 'datafusion\.public\.b' not found"):
        session.plan("SELECT x FROM b")
    assert column(*doubled.run()) == [2, 4]


def test_a_plan_of_a_table_that_was_replaced_fails_and_never_reads_the_old_rows():
    session = Session()
    session.put("a", numbers(1, 2))
    plan = session.plan("SELECT x FROM a")
    session.put("a", numbers(3, 4))
    with pytest.raises(Exception, match="a plan reads a table that was dropped"):
        session.run(plan)


def test_a_failure_names_its_table_and_the_next_run_begins_anew():
    session = Session()
    table = session.put("a", numbers(1, 2))
    inverse = chain(session, ("b", "SELECT i, CAST(1 / CAST(x AS INTEGER) AS DOUBLE) AS x FROM a"), "SELECT x FROM b")
    table.rows = numbers(0, 1)
    for _ in range(2):
        with pytest.raises(RefusedError, match=r"datafusion failed at table b: .*Divide by zero.*SELECT i, CAST"):
            inverse.run()
    table.rows = numbers(1, 1)
    assert column(*inverse.run()) == [1, 1]
    table.rows = numbers(1, 0)
    with pytest.raises(RefusedError, match="Divide by zero"):
        inverse.run()
    table.rows = numbers(1, -1)
    assert column(*inverse.run()) == [1, -1]


def test_a_deadline_ends_a_chain_between_its_queries():
    session = Session()
    session.put("a", numbers(1, 2))
    late = Deadline(seconds=1e-9)
    late.start()
    with pytest.raises(StoppedError, match="step_deadline_seconds"):
        chain(session, "SELECT x FROM a", deadline=late).run()


def test_other_columns_under_a_known_name_are_planned_anew():
    host = build_host("datafusion")
    host.load("a", ("i",), {"i": np.arange(2, dtype=np.int32), "x": np.array([1.0, 2.0])})
    assert host.fetch("SELECT * FROM a")["x"].tolist() == [1, 2]
    host.load("a", ("i",), {"i": np.arange(2, dtype=np.int32), "y": np.array([3.0, 4.0])})
    assert {name: rows.tolist() for name, rows in host.fetch("SELECT * FROM a").items()} == {"i": [0, 1], "y": [3, 4]}


def test_parts_of_a_union_are_laid_out_in_order():
    sql = (
        "WITH __ddx_q0 AS (SELECT i AS c0, x AS c1 FROM a), "
        "__ddx_q1 AS (SELECT t0.c0 AS c0, t0.c1 AS c1 FROM "
        "(SELECT c0, c1 FROM __ddx_q0 UNION ALL SELECT c0 + 1 AS c0, c1 FROM __ddx_q0) AS t0) "
        'SELECT t1.c0 AS "i", sum(t1.c1) AS "x" FROM __ddx_q1 AS t1 GROUP BY t1.c0'
    )
    *fills, last = taken_apart("g", sql)
    assert [(fill.name, len(fill.queries)) for fill in fills] == [("g_union_1", 2)] and last.name == "g"
    session = Session()
    session.put("a", numbers(1, 2))
    (found,) = Chain(session, Deadline(), fills, [last]).run()
    assert dict(zip(column(found, "i"), column(found), strict=True)) == {0: 1, 1: 3, 2: 2}


def test_a_product_with_one_row_has_the_row_first(monkeypatch):
    product = "SELECT t0.x AS c0, t1.x AS c1 FROM many AS t0 CROSS JOIN one AS t1"
    sql = f"WITH __ddx_q0 AS ({product}) SELECT c0 FROM __ddx_q0"
    monkeypatch.setattr("ddxdb._ddxdb.to_sql", lambda plan, dialect: sql)
    (fill,) = ordered("product", b"a plan of this test")
    assert "FROM one AS t1 CROSS JOIN many AS t0" in fill.queries[0]
