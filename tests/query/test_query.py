"""`gpt2exp query`: what people ask of fifty runs, and what a question must never be able to do."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "report"))

from run_dirs import ADAMW, MUONCLIP, config, write_protocol, write_rows, write_run

pytestmark = pytest.mark.sql
pytest.importorskip("duckdb")

LOSSES = {ADAMW: {1: (5.5, 4.5, 3.6), 2: (5.4, 4.4, 3.7)}, MUONCLIP: {1: (5.5, 4.2, 3.2), 2: (5.4, 4.1, 3.1)}}


@pytest.fixture
def outputs(cli, tmp_path):
    """A protocol of two arms and two seeds in `outputs`, the folder that is asked by default."""
    return write_protocol(tmp_path / "outputs", LOSSES)


def answer(cli, statement, *flags):
    """Rows as dicts of text, by way of --csv."""
    done = cli("query", statement, "--csv", *flags)
    assert done.status == 0, done.err
    return list(csv.DictReader(io.StringIO(done.out)))


def test_runs_hold_identity_and_final_values(cli, outputs):
    rows = answer(cli, 'SELECT arm, seed, status, step, final_val_loss, "training.optimizer.kind" AS kind FROM runs')
    assert [(r["arm"], r["seed"], r["final_val_loss"], r["kind"]) for r in rows] == [
        (ADAMW, "1", "3.6", "adamw"),
        (MUONCLIP, "1", "3.2", "muonclip"),
        (ADAMW, "2", "3.7", "adamw"),
        (MUONCLIP, "2", "3.1", "muonclip"),
    ]
    assert {(r["status"], r["step"]) for r in rows} == {("complete", "4")}


def test_rows_carry_whose_they_are_and_join_by_path(cli, outputs):
    statement = """
        SELECT runs.arm, runs.seed, max(updates.step) AS last, count(*) AS n, any_value(evaluations.seconds) AS s
        FROM runs JOIN updates USING (path) JOIN evaluations USING (path)
        WHERE evaluations.step = 2 GROUP BY ALL ORDER BY ALL"""
    rows = answer(cli, statement)
    assert len(rows) == 4 and {(r["last"], r["n"], r["s"]) for r in rows} == {("4", "4", "3.0")}
    for table in ("updates", "evaluations"):
        assert len(answer(cli, f"SELECT DISTINCT run, arm, seed, path FROM {table}")) == 4


def test_arms_side_by_side_with_pivot(cli, outputs):
    rows = answer(cli, "PIVOT evaluations ON arm USING avg(val_loss) GROUP BY step ORDER BY step")
    assert [list(row.values()) for row in rows] == [
        ["0", "5.45", "5.45"],
        ["2", "4.45", "4.15"],
        ["4", "3.6500000000000004", "3.1500000000000004"],
    ]


def test_columns_of_runs_are_united_by_name(cli, tmp_path):
    a = write_run(tmp_path / "a", config(ADAMW, 1))
    b = write_run(tmp_path / "b", config(MUONCLIP, 1), gated=(2,))
    late = [{"step": 1, "loss": 3, "grad_norm": None, "gated": False}]
    late += [{"step": 2, "loss": 2.5, "grad_norm": None, "gated": True, "qk_max": [1.5, None, 4.0], "own": "x"}]
    write_rows(b / "metrics.jsonl", late)
    rows = answer(cli, "SELECT run, step, loss, own, qk_max FROM updates", "--runs", str(a), str(b))
    assert [list(row.values()) for row in rows if row["run"] == "b"] == [
        ["b", "1", "3.0", "", ""],
        ["b", "2", "2.5", "x", "4.0"],
    ]
    assert len(rows) == 6


def test_a_late_column_of_one_run_among_many_is_found(cli, tmp_path):
    """DuckDB looks into 32 files and 20,480 rows unless told otherwise."""
    for seed in range(34):
        run = write_run(tmp_path / f"outputs/{seed:02}", config(ADAMW, seed))
    rows = [{"step": step, "loss": 1.0} for step in range(1, 21_001)]
    write_rows(run / "metrics.jsonl", [*rows, {"step": 21_001, "loss": 1.0, "rare": 7}])
    assert answer(cli, "SELECT seed, step, rare FROM updates WHERE rare IS NOT NULL") == [
        {"seed": "33", "step": "21001", "rare": "7"}
    ]


def test_nothing_that_a_run_lacks_is_a_missing_column(cli, tmp_path):
    run = write_run(tmp_path / "a", config(ADAMW, 1))
    for name in ("metrics", "evaluations", "timing"):
        (run / f"{name}.jsonl").unlink()
    for statement in (
        "SELECT step, loss, qk_max, qk_max_by_layer FROM updates",
        "SELECT step, val_loss, token_error, seconds FROM evaluations",
        "SELECT step, source FROM tracking",
        "SELECT step, matrix, clip_alpha, raw_D, token_error FROM spectra",
    ):
        assert answer(cli, statement, "--runs", str(run)) == []
    assert answer(cli, "SELECT step, seconds, final_val_loss FROM runs", "--runs", str(run)) == [
        {"step": "0", "seconds": "", "final_val_loss": ""}
    ]


@pytest.mark.parametrize("tail", ['{"step":5,"lo', '{"step":5,"loss":0.5}', '{"step":5,"loss":"\u00e9'])
def test_an_unterminated_last_line_is_not_a_row_yet(cli, outputs, tail):
    run = outputs / "seed=1" / ADAMW
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(tail.encode()[:-1] if tail.endswith("\u00e9") else tail.encode())
    done = cli("query", f"SELECT max(step) AS last FROM updates WHERE arm = '{ADAMW}' AND seed = 1", "--csv")
    assert (done.status, done.out, done.err) == (0, "last\n4\n", "")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metrics.jsonl", b'{"step":1}\n{"ste\n{"step":3}\n'),
        ("metrics.jsonl", b'{"step":1}\n12\n'),
        ("metrics.jsonl", b'{"step":1}\n{"step":"two"}\n'),
        ("evaluations.jsonl", b"\xff\xfe\x00\n"),
        ("run.json", b"{"),
        ("run.json", b"[]"),
        ("run.json", b'{"arm": "a"}'),
        ("run.json", b'{"schema": 99}'),
    ],
)
def test_a_damaged_run_is_left_out_and_named(cli, outputs, file, content):
    run = outputs / "seed=1" / ADAMW
    (run / file).write_bytes(content)
    done = cli("query", "SELECT count(*) AS n, count(DISTINCT path) AS m FROM runs JOIN updates USING (path)", "--csv")
    assert (done.status, done.out) == (0, "n,m\n12,3\n")
    (line,) = done.problems
    assert line.startswith(f"outputs/seed=1/{ADAMW}: left out, {file}") and "Traceback" not in line


def test_only_damaged_runs_are_a_storage_error(cli, tmp_path):
    (write_run(tmp_path / "outputs", config(ADAMW, 1)) / "metrics.jsonl").write_text("?\n")
    done = cli("query", "FROM runs")
    assert done.status == 7 and done.problems[-1] == "none of the runs can be read"


def test_a_damaged_table_of_spectra_leaves_the_run(cli, outputs):
    (outputs / "seed=1" / ADAMW / "spectra.csv").write_text("step,matrix,clip_alpha\none,L00_W_Q,3\n")
    (outputs / "seed=2" / ADAMW / "spectra.csv").write_text("step,matrix,clip_alpha\n2,L00_W_Q,\n2,L00_W_K,3.5\n")
    done = cli("query", "SELECT seed, matrix, clip_alpha FROM spectra ORDER BY matrix", "--csv")
    assert done.out == "seed,matrix,clip_alpha\n2,L00_W_K,3.5\n2,L00_W_Q,\n"
    assert done.err.startswith(f"gpt2exp: outputs/seed=1/{ADAMW}: its spectra are left out, spectra.csv is damaged")
    assert len(answer(cli, "FROM runs")) == 4


@pytest.mark.parametrize(
    "statement",
    [
        "COPY runs TO 'stolen.csv'",
        "CREATE TABLE t AS SELECT 1",
        "CREATE TABLE t AS PIVOT runs ON arm USING count(*)",
        "INSERT INTO updates SELECT * FROM updates",
        "UPDATE runs SET seed = 0",
        "DELETE FROM runs",
        "DROP TABLE runs",
        "ATTACH 'other.db'",
        "INSTALL substrait",
        "LOAD substrait",
        "SET enable_external_access = true",
        "EXPORT DATABASE 'here'",
        "EXPLAIN ANALYZE CREATE TABLE t (i INT)",
        "SELECT 1; DROP TABLE runs",
        "SELECT 1; SELECT 2",
        "",
        "-- nothing",
    ],
)
def test_only_one_statement_that_reads(cli, outputs, statement):
    before = sorted(outputs.parent.rglob("*"))
    done = cli("query", statement)
    assert done.status == 2 and len(done.problems) == 1 and done.out == ""
    assert "the views are runs, updates, evaluations, tracking, spectra" in done.err
    assert sorted(outputs.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "source",
    [
        "'secret.csv'", "read_csv('secret.csv')", "read_text('secret.csv')", "read_json('secret.csv')", "glob('*')",
        "read_blob('/etc/hostname')", "'https://example.org/x.csv'", "parquet_scan('x.parquet')",
        "query('SELECT * FROM read_text(''secret.csv'')')", "rows", "sqlite_scan('x.db', 't')",
    ],
)  # fmt: skip
def test_no_other_file_and_no_python_object_can_be_read(cli, outputs, source):
    Path("secret.csv").write_text("a\n1\n")
    done = cli("query", f"SELECT * FROM {source}")
    assert done.status == 2 and len(done.problems) == 1 and done.out == ""


def test_duckdb_says_what_is_wrong_with_a_statement(cli, outputs):
    done = cli("query", "SELECT los FROM updates")
    assert done.status == 2 and len(done.problems) == 1
    assert 'Referenced column "los" not found' in done.err and '"loss"' in done.err
    assert "syntax error" in cli("query", "SELEC 1").err
    assert 'write "training.optimizer.lr" with its double quotes' in cli(
        "query", "SELECT training.optimizer.lr FROM runs"
    ).err  # fmt: skip


def test_no_runs_bad_usage_and_help(cli, tmp_path):
    assert (cli("query", "FROM runs").status, cli("query", "FROM runs").problems) == (
        2,
        ["outputs: no run directory at or below it; name others with --runs FOLDER"],
    )
    for arguments in ([], ["SELECT 1", "SELECT 2"], ["SELECT 1", "--runs"], ["SELECT 1", "--csw"]):
        done = cli("query", *arguments)
        assert done.status == 2 and "Usage: gpt2exp query" in done.err
    done = cli("query", "--help")
    assert done.status == 0 and "final_val_loss" in done.out


def test_without_duckdb_the_extra_is_named(cli, outputs, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    done = cli("query", "FROM runs")
    assert done.status == 3 and done.problems == ["DuckDB is not installed; pip install 'gpt2exp[sql]'"]


def test_the_table_is_aligned_and_never_cut(cli, outputs):
    done = cli("query", "SELECT arm, avg(final_val_loss) AS loss, NULL AS none FROM runs GROUP BY arm ORDER BY 2")
    assert done.out.splitlines() == [
        "arm            loss  none",
        "muonclip_nano  3.15  -",
        "adamw_nano     3.65  -",
    ]
    wide = cli("query", "SELECT * FROM runs").out.splitlines()
    assert len(wide) == 5 and "…" not in wide[1]


def test_folders_with_the_letters_of_patterns_and_runs_named_twice(cli, tmp_path):
    run = write_run(tmp_path / "odd [1] *?{a,b}" / "it's", config(ADAMW, 1))
    rows = answer(
        cli, "SELECT count(*) AS n FROM updates", "--runs", str(run.parent), str(run), "--runs", str(tmp_path)
    )
    assert rows == [{"n": "4"}]


def test_lists_and_names_that_repeat_survive_csv(cli, outputs):
    done = cli("query", "SELECT 1 AS a, 2 AS a, [1.5, NULL] AS b, 'x,\"y' AS c, true AS d", "--csv")
    assert list(csv.reader(io.StringIO(done.out))) == [
        ["a", "a", "b", "c", "d"],
        ["1", "2", "[1.5, null]", 'x,"y', "true"],
    ]


def test_a_real_run_answers_what_its_frames_hold(cli, tiny_run, tmp_path):
    from gpt2exp.report.frames import results

    overrides = [text for text in tiny_run if text != "tracking=off"]
    done = cli(
        *overrides, "optimizer=muonclip_nano", "tracking=every_125", "tracking.every=2",
        "tracking.backend=fast", "hydra.run.dir=outputs/one",
    )  # fmt: skip
    assert done.status == 0, done.err
    frames = results(tmp_path / "outputs")
    for table in ("updates", "evaluations", "tracking", "spectra"):
        frame = getattr(frames, table)
        columns = ", ".join(f'"{name}"' for name in frame.columns)
        rows = answer(cli, f"SELECT {columns} FROM {table}")
        assert len(rows) == len(frame) > 0
        for row, (_, expected) in zip(rows, frame.iterrows(), strict=True):
            for name, text in row.items():
                same(text, expected[name])
    (run,) = answer(cli, "FROM runs")
    for name in ("final_val_loss", "final_token_error", "seconds", "step", "training.optimizer.lr", "digests.run"):
        same(run[name], frames.runs[name][0])


def same(text, expected):
    """A cell of CSV against a cell of a frame."""
    if isinstance(expected, list):
        assert json.loads(text) == expected
    elif text == "":
        assert expected is None or expected == "" or expected != expected
    elif isinstance(expected, bool) or text in ("true", "false"):
        assert text == str(bool(expected)).lower()
    elif isinstance(expected, str):
        assert text == expected
    else:
        assert float(text) == pytest.approx(float(expected), rel=1e-15)
