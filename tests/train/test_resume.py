"""N steps = k + resume + (N - k), bit for bit; and what resuming refuses."""

from __future__ import annotations

import json
import os
import signal

import pytest
from runs import config, results, resume, start

from gpt2exp import rundir
from gpt2exp.errors import ConfigError, NumericalError, RefusedError, StoppedError, StorageError
from gpt2exp.train import checkpoint

OPTIMIZERS = {"adamw": ["optimizer=adamw_nano"], "sgd": ["optimizer=sgd", "optimizer.momentum=0.9"]}


@pytest.fixture(scope="module", params=OPTIMIZERS)
def unbroken(request, tmp_path_factory):
    overrides = OPTIMIZERS[request.param]
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    start(folder, *overrides)
    return overrides, results(folder)


@pytest.mark.parametrize("k", range(12))
def test_resume_at_every_step(unbroken, k, tmp_path):
    overrides, expected = unbroken
    folder = tmp_path / "run"
    if k:
        with pytest.raises(StoppedError, match="stop_after_steps"):
            start(folder, *overrides, f"stop_after_steps={k}")
        assert rundir.read_record(folder)["status"] == "paused"
        assert checkpoint.steps(folder / "checkpoints")[-1] == k
        resume(folder)
    else:
        start(folder, *overrides)
    assert results(folder) == expected
    record = rundir.read_record(folder)
    assert record["status"] == "complete" and len(record["attempts"]) == (2 if k else 1)


def test_resume_after_every_step(unbroken, tmp_path):
    overrides, expected = unbroken
    folder = tmp_path / "run"
    with pytest.raises(StoppedError):
        start(folder, *overrides, "stop_after_steps=1")
    for k in range(2, 12):
        with pytest.raises(StoppedError):
            resume(folder, f"stop_after_steps={k}")
    resume(folder)
    assert results(folder) == expected


def test_one_row_a_step_and_the_grid_of_evaluations(tmp_path):
    start(tmp_path / "run")
    assert [row["step"] for row in rundir.read_rows(tmp_path / "run", "metrics")] == list(range(1, 13))
    assert [row["step"] for row in rundir.read_rows(tmp_path / "run", "evaluations")] == [0, 5, 10, 12]
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [8, 12]


def test_ctrl_c_checkpoints_and_says_how_to_go_on(tmp_path, unbroken, monkeypatch):
    from gpt2exp.engines.torch.engine import TorchEngine

    plain = TorchEngine.update

    def interrupted(self, step, window, factor):
        plain(self, step, window, factor)
        if step == 6:
            os.kill(os.getpid(), signal.SIGINT)

    overrides, expected = unbroken
    monkeypatch.setattr(TorchEngine, "update", interrupted)
    with pytest.raises(StoppedError, match="gpt2exp resume"):
        start(tmp_path / "run", *overrides)
    assert rundir.read_record(tmp_path / "run")["status"] == "stopped"
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert results(tmp_path / "run") == expected


def test_ctrl_c_twice_leaves_the_old_checkpoint(tmp_path, unbroken, monkeypatch):
    plain = checkpoint.save_file

    def interrupted(tensors, file):
        plain(tensors, file)
        if "000008" in str(file) and "slots" in str(file):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    overrides, expected = unbroken
    monkeypatch.setattr(checkpoint, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", *overrides)
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [4]
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert results(tmp_path / "run") == expected


def test_rows_after_the_checkpoint_move_to_the_attempts_folder(tmp_path, monkeypatch):
    from gpt2exp.engines.torch.engine import TorchEngine

    plain = TorchEngine.update

    def killed(self, step, window, factor):
        if step == 11:
            raise MemoryError
        plain(self, step, window, factor)

    monkeypatch.setattr(TorchEngine, "update", killed)
    with pytest.raises(MemoryError):
        start(tmp_path / "run")
    assert rundir.read_record(tmp_path / "run")["status"] == "failed"
    monkeypatch.undo()
    resume(tmp_path / "run")
    moved = (tmp_path / "run/attempts/1/metrics.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["step"] for line in moved] == [9, 10]
    assert [row["step"] for row in rundir.read_rows(tmp_path / "run", "metrics")] == list(range(1, 13))


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "zeros", "no manifest", "missing", "link"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path, unbroken, damage, capsys):
    overrides, expected = unbroken
    with pytest.raises(StoppedError):
        start(tmp_path / "run", *overrides, "stop_after_steps=10")
    newest = tmp_path / "run/checkpoints/step_000010"
    hurt(newest, damage)
    resume(tmp_path / "run")
    assert "trying the one before" in capsys.readouterr().out
    assert results(tmp_path / "run") == expected
    assert (tmp_path / "run/attempts/1/step_000010").exists()


def hurt(folder, damage):
    file = folder / "weights.safetensors"
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[-3] ^= 1
    elif damage == "truncate":
        del data[-5:]
    elif damage == "empty":
        data.clear()
    elif damage == "zeros":
        data = bytearray(len(data))
    elif damage == "no manifest":
        (folder / "manifest.json").unlink()
    elif damage == "missing":
        (folder / "slots.safetensors").unlink()
    elif damage == "link":
        file.unlink()
        file.symlink_to(folder / "slots.safetensors")
        return
    file.write_bytes(data)


def test_with_no_good_checkpoint_it_starts_again(tmp_path, unbroken):
    overrides, expected = unbroken
    with pytest.raises(StoppedError):
        start(tmp_path / "run", *overrides, "stop_after_steps=3")
    hurt(tmp_path / "run/checkpoints/step_000003", "flip")
    resume(tmp_path / "run")
    assert results(tmp_path / "run") == expected


def test_a_run_directory_is_used_once(tmp_path):
    start(tmp_path / "run")
    with pytest.raises(RefusedError, match="gpt2exp resume"):
        start(tmp_path / "run")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/notes.txt").write_text("mine")
    with pytest.raises(RefusedError, match="not empty"):
        start(tmp_path / "foreign")


def test_a_running_run_cannot_be_resumed_by_another_process(tmp_path):
    start(tmp_path / "run")
    held = rundir.RunDirectory.reopen(tmp_path / "run")
    with pytest.raises(RefusedError, match="another process"):
        resume(tmp_path / "run")
    held.close()


def test_resuming_a_complete_run_does_nothing(tmp_path):
    start(tmp_path / "run")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*") if file.name != ".lock"}
    resume(tmp_path / "run")
    assert before == {file: file.stat().st_mtime_ns for file in before}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("schedule.num_steps=20", r"training\.schedule\.num_steps was 12, is 20"),
        ("optimizer.lr=0.1", r"training\.optimizer\.lr"),
        ("seed=7", r"training\.seed was 42, is 7"),
        ("evaluation.every=6", r"measurement\.evaluation\.every"),
        ("hardware.micro_batch_size=2", r"execution\.micro_batch_size was 4, is 2.*allow_inexact"),
    ],
)
def test_another_run_is_refused_naming_the_difference(tmp_path, override, words):
    with pytest.raises(StoppedError):
        start(tmp_path / "run", "stop_after_steps=5")
    before = results_at(tmp_path / "run")
    with pytest.raises(ConfigError, match=words):
        resume(tmp_path / "run", override)
    assert results_at(tmp_path / "run") == before


def results_at(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != ".lock"}


def test_an_inexact_resume_is_stamped(tmp_path):
    with pytest.raises(StoppedError):
        start(tmp_path / "run", "stop_after_steps=5")
    resume(tmp_path / "run", "hardware.micro_batch_size=2", "resume.allow_inexact=true")
    record = rundir.read_record(tmp_path / "run")
    assert record["status"] == "complete" and record["inexact"] == [{"micro_batch_size": [4, 2]}]


def test_missing_rows_are_noticed(tmp_path):
    with pytest.raises(StoppedError):
        start(tmp_path / "run", "stop_after_steps=5")
    (tmp_path / "run/metrics.jsonl").write_bytes(b"")
    with pytest.raises(StorageError, match="rows are missing"):
        resume(tmp_path / "run")


def test_an_event_cut_in_two_is_dropped(tmp_path):
    with pytest.raises(StoppedError):
        start(tmp_path / "run", "stop_after_steps=5")
    with (tmp_path / "run/events.jsonl").open("ab") as file:
        file.write(b'{"event":"chec')
    resume(tmp_path / "run")
    assert [row["event"] for row in rundir.read_rows(tmp_path / "run", "events")][-2:] == [
        "checkpoint",
        "checkpoint",
    ]


def test_too_many_gated_updates_end_the_run_and_keep_the_checkpoint(tmp_path, monkeypatch):
    from gpt2exp.engines.torch.engine import TorchEngine

    plain = TorchEngine._accumulate
    monkeypatch.setattr(
        TorchEngine,
        "_accumulate",
        lambda self, w: plain(self, w) if self.step < 6 else plain(self, w) * float("nan"),
    )
    with pytest.raises(NumericalError, match="4 updates in a row"):
        start(tmp_path / "run", "gate.patience=3")
    record = rundir.read_record(tmp_path / "run")
    assert record["status"] == "failed" and "gated" in record["reason"]
    rows = rundir.read_rows(tmp_path / "run", "metrics")
    assert [row["gated"] for row in rows] == [False] * 6 + [True] * 4
    assert rows[-1]["loss"] is None
    assert 4 in checkpoint.steps(tmp_path / "run" / "checkpoints")


def test_patience_counts_across_a_resume(tmp_path, monkeypatch):
    from gpt2exp.engines.torch.engine import TorchEngine

    plain = TorchEngine._accumulate
    monkeypatch.setattr(
        TorchEngine,
        "_accumulate",
        lambda self, w: plain(self, w) if self.step < 6 else plain(self, w) * float("nan"),
    )
    with pytest.raises(StoppedError):
        start(tmp_path / "run", "gate.patience=3", "stop_after_steps=8")
    with pytest.raises(NumericalError, match="4 updates in a row"):
        resume(tmp_path / "run")
    assert rundir.read_rows(tmp_path / "run", "metrics")[-1]["step"] == 10


def test_keep_zero_writes_no_checkpoint(tmp_path):
    start(tmp_path / "run", "checkpoint.keep=0")
    assert not (tmp_path / "run/checkpoints").exists()
    assert rundir.read_record(tmp_path / "run")["status"] == "complete"


def test_a_run_learns_and_samples(tmp_path, capsys):
    cfg = config("sample.tokens=5")
    assert cfg.sample.tokens == 5
    loss = start(tmp_path / "run", "schedule.num_steps=100", "optimizer.lr=0.01")
    out = capsys.readouterr().out
    assert loss is not None and f"final val loss {loss:.4f}" in out
    entropy = float(out.split("unigram entropy of the same tokens ")[1].split(":")[0])
    assert loss < entropy
