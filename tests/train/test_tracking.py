"""Token error and snapshots beside the loss: due once, resumed exactly, never a status that claims too much."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import OVERRIDES, TRACKED, resume, start, tracked_results

from gpt2exp import rundir
from gpt2exp.errors import ConfigError, StoppedError
from gpt2exp.spectral import snapshots
from gpt2exp.spectral.snapshots import Queue
from gpt2exp.spectral.supervisor import Supervisor


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tracked") / "run"
    start(folder, *TRACKED)
    return folder


def rows(folder, kind="tracking"):
    return rundir.read_rows(folder, kind)


def status(folder):
    return rundir.read_record(folder)["status"]


def test_the_grid_is_zero_multiples_and_last_of_both(unbroken):
    assert [row["step"] for row in rows(unbroken)] == [0, 3, 5, 6, 9, 10, 12]
    assert [row["step"] for row in rows(unbroken) if row["snapshot_sha256"]] == [0, 5, 10, 12]
    assert Queue(unbroken / "spectra").done() == [0, 5, 10, 12]
    assert status(unbroken) == "complete"


def test_token_error_comes_from_the_evaluation_where_one_is_due(unbroken):
    evaluations = {row["step"]: row for row in rows(unbroken, "evaluations")}
    sources = {row["step"]: row["source"] for row in rows(unbroken)}
    assert sources == {**dict.fromkeys((0, 5, 10, 12), "evaluation"), **dict.fromkeys((3, 6, 9), "probe")}
    for row in rows(unbroken):
        if row["source"] == "evaluation":
            assert row["token_error"] == evaluations[row["step"]]["token_error"]


def test_the_probe_reads_the_evaluations_own_tokens_by_default(tmp_path, unbroken):
    """Without the evaluation the probe gives the same token errors, so the series is about the same tokens."""
    start(tmp_path / "run", *TRACKED, "evaluation.every=12")
    probed = {row["step"]: row["token_error"] for row in rows(tmp_path / "run")}
    assert probed == {row["step"]: row["token_error"] for row in rows(unbroken)}


def test_tracking_moves_no_number_of_the_training(tmp_path, unbroken):
    start(tmp_path / "run")
    for name in ("metrics.jsonl", "evaluations.jsonl", "checkpoints/step_000012/weights.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (unbroken / name).read_bytes()
    assert not (tmp_path / "run/spectra").exists()


def test_spectra_are_of_the_weights_of_their_step(unbroken):
    import numpy as np
    from safetensors.numpy import load_file

    weights = load_file(unbroken / "checkpoints/step_000012/weights.safetensors")
    packed = weights["transformer.h.0.attn.c_attn.weight"].astype(np.float64)
    key = packed[16:32]
    found = Queue(unbroken / "spectra").eigenvalues(12)["L00_W_K"]
    np.testing.assert_allclose(found, np.sort(np.linalg.svd(key, compute_uv=False) ** 2), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("pause", [1, 5, 7, 10])
def test_a_resumed_run_has_the_same_spectra(tmp_path, unbroken, pause):
    with pytest.raises(StoppedError):
        start(tmp_path / "run", *TRACKED, f"stop_after_steps={pause}")
    resume(tmp_path / "run")
    assert tracked_results(tmp_path / "run") == tracked_results(unbroken)
    assert not list((tmp_path / "run").glob("attempts/*/spectra"))


def test_an_inexact_resume_sets_the_other_weights_aside(tmp_path):
    """Steps 5 and 10 are reached again with other bits: their old spectra must not stand for the new weights."""
    folder = tmp_path / "run"
    with pytest.raises(StoppedError):
        start(folder, *TRACKED, "stop_after_steps=11", "checkpoint.every=4")
    for step in (8, 11):
        weights = folder / f"checkpoints/step_{step:06d}/weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
    resume(folder, "hardware.micro_batch_size=1", "resume.allow_inexact=true")
    assert status(folder) == "complete"
    hashes = {row["step"]: row["snapshot_sha256"] for row in rows(folder) if row["snapshot_sha256"]}
    assert {step: Queue(folder / "spectra").result(step)["snapshot_sha256"] for step in hashes} == hashes
    aside = {file.name for file in folder.glob("attempts/1/spectra/**/*") if file.is_file()}
    assert any(name.startswith("step_000005") for name in aside)


def test_too_many_pending_snapshots_make_training_wait_and_say_so(tmp_path, monkeypatch, capsys):
    """One at a time: the queue never holds two."""
    most = 0
    plain = snapshots.Queue.publish

    def counted(self, header, weights):
        nonlocal most
        sha256 = plain(self, header, weights)
        most = max(most, len(self.pending()))
        return sha256

    monkeypatch.setattr(snapshots.Queue, "publish", counted)
    start(tmp_path / "run", *TRACKED, "tracking.max_pending=1")
    assert most == 1
    assert "training waits for the worker" in capsys.readouterr().out
    assert {row["event"] for row in rows(tmp_path / "run", "events")} >= {"tracking_wait"}
    assert status(tmp_path / "run") == "complete"


def test_a_worker_that_only_dies_stops_training_where_the_queue_is_full(tmp_path, monkeypatch, unbroken):
    folder = tmp_path / "run"
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/bin/false")
        with pytest.raises(StoppedError, match=r"the worker died 3 times on step 0 .* gpt2exp resume"):
            start(folder, *TRACKED, "tracking.max_pending=2")
    assert status(folder) == "stopped" and Queue(folder / "spectra").pending() == [0, 5]
    resume(folder)
    assert status(folder) == "complete" and tracked_results(folder) == tracked_results(unbroken)


def trained_only(folder, monkeypatch):
    """A run that was trained to the end and stopped while its spectra were being fitted."""
    with monkeypatch.context() as idle:
        idle.setattr(Supervisor, "ensure", lambda self: None)
        idle.setattr(Supervisor, "wait", lambda self, at_most, stopped: at_most > 0)
        with pytest.raises(StoppedError, match=r"trained to the end, but spectra are missing .* gpt2exp spectra"):
            start(folder, *TRACKED)


def test_a_run_is_measuring_until_its_grid_is_done(tmp_path, monkeypatch, unbroken, cli):
    folder = tmp_path / "run"
    trained_only(folder, monkeypatch)
    assert status(folder) == "measuring" and Queue(folder / "spectra").pending() == [0, 5, 10, 12]
    assert "measuring" in cli("status", str(folder)).out
    done = cli("spectra", str(folder))
    assert done.status == 0 and status(folder) == "complete"
    assert rundir.read_record(folder)["final_val_loss"] == rows(folder, "evaluations")[-1]["val_loss"]
    assert tracked_results(folder) == tracked_results(unbroken)


def test_resume_finishes_the_measuring_and_trains_nothing(tmp_path, monkeypatch, unbroken):
    folder = tmp_path / "run"
    trained_only(folder, monkeypatch)
    before = (folder / "metrics.jsonl").stat().st_mtime_ns
    resume(folder)
    assert status(folder) == "complete" and (folder / "metrics.jsonl").stat().st_mtime_ns == before
    assert rundir.read_record(folder)["attempts"][-1]["attempt"] == 1
    assert tracked_results(folder) == tracked_results(unbroken)


def test_lost_snapshots_never_become_complete(tmp_path, monkeypatch, cli):
    folder = tmp_path / "run"
    trained_only(folder, monkeypatch)
    Queue(folder / "spectra").discard(10)
    done = cli("spectra", str(folder))
    assert done.status == 4 and "no spectra of steps 10: their snapshots are gone" in done.err
    assert status(folder) == "measuring"


def test_results_of_other_weights_are_not_counted(tmp_path, monkeypatch, cli):
    folder = tmp_path / "run"
    trained_only(folder, monkeypatch)
    assert cli("spectra", str(folder)).status == 0
    file = folder / "spectra/step_000005.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "snapshot_sha256": "0" * 64}))
    done = cli("spectra", str(folder))
    assert "at 3 of 4 steps" in done.out


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["tracking.every=0"], "tracking.every=0: must be at least 1"),
        (["tracking.probe_tokens=17"], "tracking.probe_tokens=17: must be a multiple of schedule.context_length=16"),
        (["tracking.also_at=[-1]"], "tracking.also_at=[-1]: steps are counted from 0"),
        (["tracking.randomize=true"], "tracking.randomize=true: tracking.backend=fast has no randomisation"),
        (["tracking.probe_tokens=2000"], "the validation split has 2,000 tokens"),
    ],
)
def test_what_cannot_be_tracked_is_refused_before_it_starts(tmp_path, overrides, line):
    with pytest.raises(ConfigError) as refused:
        start(tmp_path / "run", *TRACKED, *overrides)
    assert line in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_sigint_while_waiting_for_spectra_stops_cleanly(tmp_path):
    """As a user meets it: Ctrl-C, exit 4, and one command that finishes."""
    folder = tmp_path / "run"
    code = (
        "import sys, time; from gpt2exp.spectral import supervisor\n"
        "supervisor.Supervisor.ensure = lambda self: None\n"
        "from gpt2exp.main import main; main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", code, *OVERRIDES, *TRACKED, f"hydra.run.dir={folder}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    seen = ""
    while "snapshots to fit" not in seen:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        seen += line
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4 and "gpt2exp spectra" in err
    assert rundir.read_record(Path(folder))["status"] == "measuring"
