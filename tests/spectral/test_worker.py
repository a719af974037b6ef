"""The worker may be killed anywhere: nothing is lost, nothing is done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from queues import header, until, weights

from gpt2exp import atomic
from gpt2exp.errors import StorageError
from gpt2exp.spectral import backends, worker
from gpt2exp.spectral.snapshots import Queue, read_slice
from gpt2exp.spectral.supervisor import MAX_DEATHS, Supervisor, supervised


def never():
    return False


def test_a_snapshot_is_fitted_slice_by_slice_and_its_weights_go(queue):
    matrices = weights()
    sha256 = queue.publish(header(125), matrices)
    worker.fit_pending(queue)
    result = queue.result(125)
    assert queue.pending() == [] and list(queue.pending_folder.iterdir()) == []
    assert (result["step"], result["tokens"], result["snapshot_sha256"]) == (125, 8000, sha256)
    assert [row["matrix"] for row in result["spectra"]] == [part.name for part in header(125).slices]
    for row, part in zip(result["spectra"], header(125).slices, strict=True):
        matrix = matrices[part.stored_in][part.start : part.stop].astype(np.float32)
        expected = backends.measure("fast", matrix, part.name)
        assert {name: row[name] for name in expected.row()} == expected.row()
        np.testing.assert_array_equal(queue.eigenvalues(125)[part.name], expected.eigenvalues)


def test_results_say_who_fitted_them(queue):
    queue.publish(header(0), weights())
    worker.fit_pending(queue)
    result = queue.result(0)
    assert result["backend"] == "fast" and result["backend_label"] == backends.label("fast")
    assert result["versions"]["numpy"] == np.__version__
    assert result["attempts"] == 1


def test_weights_are_kept_where_asked_for(queue):
    sha256 = queue.publish(header(125, keep_weights=True), weights())
    worker.fit_pending(queue)
    assert atomic.sha256_file(queue.weights_file(125)) == sha256
    part = header(125).slices[1]
    assert read_slice(queue.weights_file(125), part).shape == (32, 32)


def test_one_bad_matrix_does_not_take_the_others(queue):
    matrices = weights()
    bad = header(125).slices[0].stored_in
    matrices[bad][:32] = np.nan
    matrices[bad][32:64] = 0
    queue.publish(header(125), matrices)
    worker.fit_pending(queue)
    rows = {row["kind"]: row for row in queue.result(125)["spectra"]}
    for kind in ("W_Q", "W_K"):
        assert rows[kind]["clip_alpha"] is None and rows[kind]["raw_alpha"] is None
        assert rows[kind]["clip_status"] not in ("success", "")
    assert all(rows[kind]["clip_alpha"] > 1 for kind in ("W_V", "W_O", "W_MLP_IN", "W_MLP_OUT"))


def test_a_damaged_snapshot_is_said_and_never_fitted(queue, capsys):
    queue.publish(header(125), weights())
    file = queue.snapshot_file(125)
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    worker.fit_pending(queue)
    assert queue.done() == [] and queue.status(125)["state"] == "damaged"
    assert "SHA256 is not" in capsys.readouterr().err


def test_a_result_that_stands_is_not_made_again(queue):
    """Killed between the result and the end of the snapshot."""
    queue.publish(header(125), weights())
    status = queue.status_file(125).read_bytes(), queue.snapshot_file(125).read_bytes()
    worker.fit_pending(queue)
    before = queue.result_file(125).stat().st_mtime_ns
    queue.status_file(125).write_bytes(status[0])
    queue.snapshot_file(125).write_bytes(status[1])
    worker.fit_pending(queue)
    assert queue.result_file(125).stat().st_mtime_ns == before and queue.pending() == []


def test_damaged_eigenvalues_do_not_let_the_weights_go(queue, monkeypatch):
    queue.publish(header(125), weights())
    plain = worker.publish

    def torn(*arguments):
        plain(*arguments)
        queue.eigenvalues_file(125).write_bytes(b"torn")

    monkeypatch.setattr(worker, "publish", torn)
    with pytest.raises(StorageError, match="missing or damaged"):
        worker.fit_pending(queue)
    assert queue.snapshot_file(125).exists() and queue.pending() == [125]


def start(queue: Queue) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "gpt2exp.spectral.worker", str(queue.folder)],
        stdin=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_sigkill_in_the_middle_of_a_fit_loses_nothing(queue, tmp_path):
    """Six slices of 640 x 160 and more take a while; killed while the status says `fitting`, then started again."""
    big = weights(1, width=160)
    parts = tuple(
        type(part)(part.name, part.kind, 0, part.stored_in, 5 * part.start, 5 * part.stop) for part in header(1).slices
    )
    queue.publish(header(1, slices=parts), big)
    unbroken = Queue(tmp_path / "unbroken")
    unbroken.publish(header(1, slices=parts), big)
    worker.fit_pending(unbroken)
    process = start(queue)
    until(lambda: queue.status(1).get("state") == "fitting")
    process.send_signal(signal.SIGKILL)
    process.stdin.close()
    process.wait()
    assert queue.pending() == [1] and queue.done() == []
    with supervised(queue, print) as supervisor:
        assert supervisor.wait(0, never)
    assert queue.pending() == [] and queue.result(1)["attempts"] == 2
    assert queue.result(1)["spectra"] == unbroken.result(1)["spectra"]
    assert queue.eigenvalues_file(1).read_bytes() == unbroken.eigenvalues_file(1).read_bytes()


def test_a_worker_leaves_when_its_parent_is_gone(queue):
    queue.folder.mkdir()
    process = start(queue)
    until((queue.folder / ".lock").exists)
    process.stdin.close()
    assert process.wait(20) == 0


def test_a_worker_that_dies_is_started_again_and_said(queue):
    queue.publish(header(1), weights())
    said: list[str] = []
    with supervised(queue, said.append) as supervisor:
        supervisor.ensure()
        supervisor.worker.kill()
        supervisor._process.wait()
        assert supervisor.wait(0, never)
    assert len(said) == 1 and "started again, nothing is lost" in said[0]


def test_a_worker_that_only_dies_is_given_up_and_the_snapshot_kept(queue, monkeypatch):
    queue.publish(header(1), weights())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    said: list[str] = []
    with supervised(queue, said.append) as supervisor:
        assert not supervisor.wait(0, never)
    assert f"died {MAX_DEATHS} times on step 1" in supervisor.trouble
    assert len(said) == MAX_DEATHS and queue.pending() == [1]


def test_waiting_for_a_damaged_snapshot_ends(queue):
    queue.publish(header(1), weights())
    queue.snapshot_file(1).unlink()
    with supervised(queue, print) as supervisor:
        assert not supervisor.wait(0, never)
    assert "step 1 has no spectra" in supervisor.trouble


def test_a_stop_ends_the_waiting(queue):
    queue.publish(header(1), weights())
    supervisor = Supervisor(queue, print)
    assert not supervisor.wait(0, lambda: True)
    supervisor.stop()
    assert queue.pending() == [1]


def test_strict_json_everywhere(queue):
    queue.publish(header(125), {name: np.full_like(w, np.inf) for name, w in weights().items()})
    worker.fit_pending(queue)
    json.loads(queue.result_file(125).read_text(), parse_constant=lambda name: pytest.fail(name))
