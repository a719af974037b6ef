"""Runs on the SQL engines through the command line: complete, measured, resumed exactly, refused in one line."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("ddxdb")

from both import HOSTS

from gpt2exp.engines.sql.engine import SqlEngine
from gpt2exp.engines.sql.hosts import build_host
from gpt2exp.errors import RefusedError, StoppedError

pytestmark = pytest.mark.sql

MODEL = "model=nanogpt_mini"
RUN = [
    "optimizer=muonclip", "optimizer.qk_clip_threshold=0.002", "schedule.num_steps=6",
    "schedule.warmup_steps=1", "schedule.tokens_per_step=64", "schedule.context_length=16", "data=synthetic",
    "data.train_tokens=4096", "data.val_tokens=1025", "evaluation.every=3", "evaluation.tokens=128",
    "checkpoint.every=2", "logging.log_every=2", "sample.tokens=0", "tracking.every=3", "tracking.backend=fast",
]  # fmt: skip
FILES = ("metrics.jsonl", "evaluations.jsonl", "checkpoints/step_000006/weights.safetensors",
         "checkpoints/step_000006/slots.safetensors", "spectra/step_000006.npz")  # fmt: skip


@pytest.fixture
def duckdb(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    host = build_host("duckdb")
    yield host
    host.close()


def record(run: Path) -> dict:
    return json.loads((run / "run.json").read_text())


@pytest.mark.parametrize("host", HOSTS)
def test_a_run_is_complete_and_resumes_to_the_same_bits(cli, host):
    whole = cli(MODEL, *RUN, f"hardware={host}", "hydra.run.dir=whole")
    assert whole.status == 0, whole.err
    found = record(Path("whole"))
    assert found["status"] == "complete"
    assert (found["execution"]["engine"], found["execution"]["device"]) == ("sql", host)
    assert "ddxdb" in found["execution"]
    rows = [json.loads(line) for line in Path("whole/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert all(row["qk_kind"] == ["exact"] for row in rows) and any(row["qk_clipped"] for row in rows)
    assert cli(MODEL, *RUN, f"hardware={host}", "hydra.run.dir=half", "stop_after_steps=3").status == 4
    again = cli("resume", "half")
    assert again.status == 0, again.err
    for name in FILES:
        assert (Path("half") / name).read_bytes() == (Path("whole") / name).read_bytes(), name


def test_the_databases_agree_on_a_run(cli):
    losses = []
    for host in HOSTS:
        assert cli(MODEL, *RUN, f"hardware={host}", f"hydra.run.dir={host}").status == 0
        lines = Path(host, "evaluations.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["val_loss"] for line in lines])
    assert losses[0] == pytest.approx(losses[1], rel=1e-13)


def losses_of_the_mini_preset(cli, hardware, *overrides):
    run = ["preset=nanogpt_mini_sgd", "precision=fp64", "evaluation=off", "evaluation.every=null", *overrides]
    assert cli(*run, f"hardware={hardware}", f"hydra.run.dir={hardware}").status == 0
    return [json.loads(row)["loss"] for row in Path(hardware, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("host", HOSTS)
def test_the_mini_preset_takes_the_loss_down_in_five_steps(cli, host):
    """Learning rate 0.5, on two executors that share no code."""
    data = ("data=synthetic", "data.train_tokens=4096")
    expected, found = (losses_of_the_mini_preset(cli, hardware, *data) for hardware in ("cpu", host))
    assert found == pytest.approx(expected, rel=1e-14)
    assert len(found) == 5 and found[4] < found[0] - 0.15


@pytest.mark.parametrize("hardware", ["cpu", *HOSTS])
def test_the_mini_preset_on_tiny_shakespeare(cli, hardware, tinyshakespeare):
    found = losses_of_the_mini_preset(cli, hardware, f"data.path={tinyshakespeare}")
    pinned = [4.165770470787737, 4.048266443677432, 3.932857794023448, 3.736684269347382, 3.612508104411808]
    assert found == pytest.approx(pinned, rel=1e-13)


def test_a_model_that_is_too_large_is_refused_before_anything_exists(cli):
    done = cli("hardware=duckdb", "model=gpt2", "model.source=reference", "data=synthetic")
    assert done.status == 3
    (line,) = done.problems
    assert "more than hardware.max_rows=120000000" in line and "GB" in line and "an update takes about" in line
    assert not Path("outputs").exists()


def test_the_limit_can_be_moved(cli):
    assert cli(MODEL, *RUN, "hardware=duckdb", "hardware.max_rows=1000").status == 3
    done = cli(MODEL, *RUN, "hardware=duckdb", "hardware.max_rows=75000", "hydra.run.dir=run", "stop_after_steps=1")
    assert done.status == 4, done.err
    assert record(Path("run"))["execution"]["micro_batch_size"] == 1


def test_an_update_that_takes_too_long_ends_the_attempt(cli):
    done = cli(MODEL, *RUN, "hardware=duckdb", "hardware.step_deadline_seconds=1e-6", "hydra.run.dir=slow")
    assert done.status == 4 and "hardware.step_deadline_seconds=1e-06" in done.problems[-1]


def test_a_statement_that_takes_too_long_is_interrupted(duckdb):
    duckdb.deadline.seconds = 0.3
    duckdb.deadline.start()
    started = time.monotonic()
    with pytest.raises(StoppedError, match=r"hardware\.step_deadline_seconds=0\.3"):
        duckdb.fetch("SELECT SUM(a.range * b.range) AS x FROM range(10000000) a, range(10000000) b")
    assert time.monotonic() - started < 20
    duckdb.deadline.start()
    assert duckdb.fetch("SELECT 1 AS x")["x"].tolist() == [1]


def test_memory_that_is_not_there_is_one_line_and_nothing_is_written(duckdb):
    duckdb.connection.execute("SET memory_limit = '20MB'")
    with pytest.raises(RefusedError, match="duckdb failed at table asked for: Out of Memory Error") as caught:
        duckdb.fetch("SELECT list(range) AS x FROM range(100000000)")
    assert "\n" not in str(caught.value) and list(Path().iterdir()) == []


@pytest.mark.parametrize("host", HOSTS)
def test_a_database_that_fails_in_a_run_loses_nothing(cli, host, monkeypatch):
    assert cli(MODEL, *RUN, f"hardware={host}", "hydra.run.dir=whole").status == 0
    updates = count(1)
    plain = SqlEngine.update

    def failing(engine, *arguments):
        if next(updates) == 4:
            engine.host.close()
        plain(engine, *arguments)

    monkeypatch.setattr(SqlEngine, "update", failing)
    done = cli(MODEL, *RUN, f"hardware={host}", "hydra.run.dir=half")
    (line,) = done.problems
    assert done.status == 3 and f"{host} failed at table" in line and line.endswith("/half"), line
    assert "; the newest checkpoint stands: gpt2exp resume " in line
    assert record(Path("half"))["status"] == "failed"
    monkeypatch.setattr(SqlEngine, "update", plain)
    assert cli("resume", "half").status == 0
    for name in FILES:
        assert (Path("half") / name).read_bytes() == (Path("whole") / name).read_bytes(), name


@pytest.mark.parametrize("host", HOSTS)
def test_a_process_killed_with_its_database_continues_to_the_same_bits(cli, host):
    """The database lives in the process of the run: whatever kills one kills both."""
    assert cli(MODEL, *RUN, f"hardware={host}", "hydra.run.dir=whole").status == 0
    command = [sys.executable, "-m", "gpt2exp.main", MODEL, *RUN, f"hardware={host}", "hydra.run.dir=half"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while not Path("half/checkpoints/step_000002/manifest.json").exists():
            assert run.poll() is None, "it ended before its first checkpoint"
            time.sleep(0.02)
        run.kill()
    assert record(Path("half"))["status"] == "running"
    assert cli("resume", "half").status == 0
    for name in FILES:
        assert (Path("half") / name).read_bytes() == (Path("whole") / name).read_bytes(), name


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("precision=fp32", "precision=fp32: hardware=duckdb offers fp64"),
        ("hardware.threads=2", "hardware.threads=2: hardware=duckdb adds up in one thread, in a fixed order"),
        ("model=gpt2", "model.source=llmc: hardware=duckdb states the model itself; use reference"),
        ("optimizer.ns_precision=bf16", "optimizer.ns_precision=bf16: SQL iterates in DOUBLE; use fp32, there the "
         "weights' own precision"),
        ("hardware.orthogonalizer=eigh", "hardware.orthogonalizer=eigh: hardware=duckdb computes the plain iteration "
         "only; use ns or auto"),
        ("hardware.step_deadline_seconds=0", "hardware.step_deadline_seconds=0: must be greater than 0"),
        ("hardware.max_rows=0", "hardware.max_rows=0: must be at least 1"),
    ],
)  # fmt: skip
def test_what_sql_cannot_do_is_one_line(cli, override, problem):
    model = [] if override.startswith("model=") else [MODEL]
    done = cli(*model, *RUN, "hardware=duckdb", override)
    assert done.status == 2 and done.problems == [problem]
