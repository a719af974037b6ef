"""The queue: immutable, self-describing, counted once."""

from __future__ import annotations

import stat
from dataclasses import replace

import numpy as np
import pytest

from gpt2exp import atomic
from gpt2exp.config import ModelConfig, ModelSource
from gpt2exp.errors import StorageError
from gpt2exp.spectral.slices import slices
from gpt2exp.spectral.snapshots import Header, Queue, SnapshotConflictError, read_header, read_slice, stored_names

MODEL = ModelConfig("t", ModelSource.reference, None, n_layer=2, n_head=2, n_embd=16, block_size=8, vocab_size=32)
GPT2 = ModelConfig("g", ModelSource.llmc, None, n_layer=12, n_head=12, n_embd=768, block_size=1024, vocab_size=50257)
HEADER = Header(125, 1000, 42, "fast", False, False, slices(MODEL))


def weights(seed=0):
    random = np.random.default_rng(seed)
    shapes = {part.stored_in: 0 for part in HEADER.slices}
    columns = {name: 64 if name.endswith("mlp.c_proj.weight") else 16 for name in shapes}
    rows = {name: max(part.stop for part in HEADER.slices if part.stored_in == name) for name in shapes}
    drawn = {name: random.standard_normal((rows[name], columns[name])) for name in shapes}
    return {"transformer.wte.weight": np.ones((32, 16)), **drawn}


def test_gpt2_has_72_slices_of_48_stored_matrices():
    parts = slices(GPT2)
    assert len(parts) == 72 and len(stored_names(parts)) == 48
    assert [part.name for part in parts[:6]] == [
        "L00_W_Q", "L00_W_K", "L00_W_V", "L00_W_O", "L00_W_MLP_IN", "L00_W_MLP_OUT"
    ]  # fmt: skip
    assert [(part.start, part.stop) for part in parts[:3]] == [(0, 768), (768, 1536), (1536, 2304)]
    assert {part.block for part in parts} == set(range(12))


def test_a_snapshot_holds_the_matrices_in_fp32_and_describes_itself(queue):
    matrices = weights()
    queue.publish(HEADER, matrices)
    file = queue.snapshot_file(125)
    assert read_header(file) == HEADER
    for part in HEADER.slices:
        expected = matrices[part.stored_in][part.start : part.stop].astype(np.float32)
        np.testing.assert_array_equal(read_slice(file, part), expected)
        assert read_slice(file, part).dtype == np.float32


def test_the_embeddings_are_not_in_it(queue):
    queue.publish(HEADER, weights())
    assert b"wte" not in queue.snapshot_file(125).read_bytes()


def test_it_is_read_only_and_queued(queue):
    sha256 = queue.publish(HEADER, weights())
    assert stat.S_IMODE(queue.snapshot_file(125).stat().st_mode) == 0o444
    assert sha256 == atomic.sha256_file(queue.snapshot_file(125))
    assert queue.pending() == [125] and queue.done() == []
    assert queue.status(125)["state"] == "queued" and queue.status(125)["attempts"] == 0


def test_equal_weights_give_equal_bytes(queue, tmp_path):
    other = Queue(tmp_path / "other")
    assert queue.publish(HEADER, weights()) == other.publish(HEADER, weights())


def test_the_same_snapshot_is_not_queued_twice(queue):
    sha256 = queue.publish(HEADER, weights())
    queue.update_status(125, state="fitting", attempts=1)
    assert queue.publish(HEADER, weights()) == sha256
    assert queue.status(125)["attempts"] == 1


def test_one_that_was_fitted_is_not_queued_again(queue):
    sha256 = queue.publish(HEADER, weights())
    atomic.write_json(queue.result_file(125), {"format": 1, "step": 125, "snapshot_sha256": sha256})
    queue.retire(125, keep_weights=False)
    assert queue.publish(HEADER, weights()) == sha256
    assert queue.pending() == [] and list(queue.pending_folder.iterdir()) == []


@pytest.mark.parametrize("fitted", [False, True])
def test_other_weights_of_the_same_step_are_refused_and_change_nothing(queue, fitted):
    sha256 = queue.publish(HEADER, weights())
    if fitted:
        atomic.write_json(queue.result_file(125), {"format": 1, "step": 125, "snapshot_sha256": sha256})
        queue.retire(125, keep_weights=False)
    before = {file: file.read_bytes() for file in queue.folder.rglob("*") if file.is_file()}
    with pytest.raises(SnapshotConflictError, match="step 125 has a snapshot of other weights"):
        queue.publish(HEADER, weights(1))
    assert {file: file.read_bytes() for file in queue.folder.rglob("*") if file.is_file()} == before


def test_set_aside_moves_everything_of_the_step(queue, tmp_path):
    queue.publish(HEADER, weights())
    queue.publish(replace(HEADER, step=250), weights(1))
    queue.set_aside(125, tmp_path / "attempts")
    assert queue.pending() == [250]
    assert sorted(file.name for file in (tmp_path / "attempts/pending").iterdir()) == [
        "step_000125.json", "step_000125.safetensors"
    ]  # fmt: skip
    queue.publish(HEADER, weights(2))
    assert queue.pending() == [125, 250]


@pytest.mark.parametrize("keep", [False, True])
def test_retired_weights_go_or_are_kept(queue, keep):
    sha256 = queue.publish(HEADER, weights())
    queue.retire(125, keep)
    assert queue.pending() == [] and list(queue.pending_folder.iterdir()) == []
    assert queue.weights_file(125).exists() == keep
    assert not keep or atomic.sha256_file(queue.weights_file(125)) == sha256


def test_a_snapshot_without_its_status_does_not_count(queue):
    queue.publish(HEADER, weights())
    queue.status_file(125).unlink()
    assert queue.pending() == []
    queue.publish(HEADER, weights(1))
    assert queue.pending() == [125]


def test_a_file_that_is_no_snapshot_is_named(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"no")
    with pytest.raises(StorageError, match="not a snapshot of gpt2exp"):
        read_header(tmp_path / "x.safetensors")


@pytest.mark.parametrize("text", ["", "[]", '{"format": 99}', "{"])
def test_a_damaged_result_is_named(queue, text):
    queue.folder.mkdir()
    queue.result_file(125).write_text(text)
    with pytest.raises(StorageError, match=r"step_000125\.json"):
        queue.result(125)


def test_a_disk_that_refuses_is_said_and_nothing_is_queued(queue, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpt2exp.spectral.snapshots.save_file", full)
    with pytest.raises(StorageError, match="No space left"):
        queue.publish(HEADER, weights())
    assert queue.pending() == [] and list(queue.pending_folder.iterdir()) == []
