"""When a stamp counts: same run, execution, machine, boot and versions, and not older than a day."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta

import pytest

from gpt2exp.errors import StorageError
from gpt2exp.identity import Identity
from gpt2exp.preflight import stamp

IDENTITY = Identity({"seed": 1}, {"every": 2}, {"engine": "torch", "device": "cpu", "devices": 1, "torch": "2.9.1"})
DIGEST = IDENTITY.digests["run"]


@pytest.fixture(autouse=True)
def stamped(monkeypatch, tmp_path):
    monkeypatch.setenv("GPT2EXP_CACHE", str(tmp_path / "cache"))
    result = stamp.Result("data", True, "there", 0.1)
    return stamp.publish(stamp.content(IDENTITY, [result], {"projected_seconds": 1.5}))


def change(file, **values):
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_a_stamp_just_made_counts(stamped, tmp_path):
    assert stamped == tmp_path / "cache" / "preflight" / f"{DIGEST[:16]}.json"
    assert stamp.problems(IDENTITY) == []
    found = json.loads(stamped.read_text())
    assert found["run"] == DIGEST and found["checks"][0]["found"] == "there"
    assert found["measured"] == {"projected_seconds": 1.5} and found["machine"]["host"]


def test_another_run_has_no_stamp():
    assert stamp.problems(Identity({"seed": 2}, {"every": 2}, IDENTITY.execution)) == [
        "no preflight of this run was made"
    ]


def test_a_stamp_under_a_borrowed_name_does_not_count(stamped):
    change(stamped, run="0" * 64)
    assert stamp.problems(IDENTITY) == [f"run was {'0' * 64}, is {DIGEST}"]


@pytest.mark.parametrize(
    ("key", "now"), [("devices", 8), ("device", "tpu"), ("torch", "2.9.0"), ("matmul_precision", "highest")]
)
def test_another_execution_does_not_count(key, now):
    other = Identity(IDENTITY.training, IDENTITY.measurement, {**IDENTITY.execution, key: now})
    (problem,) = stamp.problems(other)
    assert problem == f"execution.{key} was {IDENTITY.execution.get(key, '-')}, is {now}"


def test_another_boot_does_not_count(monkeypatch, tmp_path):
    (tmp_path / "boot_id").write_text("another\n")
    monkeypatch.setattr(stamp, "BOOT_ID", tmp_path / "boot_id")
    (problem,) = stamp.problems(IDENTITY)
    assert problem.startswith("machine.boot was ") and problem.endswith("is another")


def test_a_system_without_boot_ids_still_has_stamps(monkeypatch, tmp_path):
    monkeypatch.setattr(stamp, "BOOT_ID", tmp_path / "none")
    stamp.publish(stamp.content(IDENTITY, [], {}))
    assert stamp.problems(IDENTITY) == []


def test_another_machine_does_not_count(monkeypatch):
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert stamp.problems(IDENTITY)[0].startswith("machine.host was ")


def test_another_version_does_not_count(monkeypatch):
    monkeypatch.setattr("gpt2exp.__version__", "99")
    assert (
        stamp.problems(IDENTITY)
        == [f"versions.gpt2exp was {stamp.content(IDENTITY, [], {})['versions']['gpt2exp']}, is 99"]
        or "is 99" in stamp.problems(IDENTITY)[0]
    )


def test_a_newly_installed_torch_xla_does_not_count(monkeypatch):
    installed = stamp.installed
    monkeypatch.setattr(stamp, "installed", lambda name: "2.9.0" if name == "torch_xla" else installed(name))
    (problem,) = stamp.problems(IDENTITY)
    assert problem.startswith("versions.torch_xla was ") and problem.endswith(" is 2.9.0")


@pytest.mark.parametrize(("hours", "counts"), [(0, True), (23.9, True), (24.1, False), (-0.05, True), (-1, False)])
def test_a_stamp_counts_for_a_day(hours, counts):
    problems = stamp.problems(IDENTITY, datetime.now(UTC) + timedelta(hours=hours))
    assert (problems == []) is counts
    assert counts or "hours old" in problems[0] or "still to come" in problems[0]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"schema": 1}', '{"schema": 1, "made": "yesterday"}'])
def test_a_damaged_stamp_does_not_count(stamped, content):
    stamped.write_text(content)
    assert stamp.problems(IDENTITY) == [f"{stamped} is damaged"]


def test_a_stamp_of_another_schema_does_not_count(stamped):
    change(stamped, schema=2)
    assert "another version of gpt2exp (schema 2)" in stamp.problems(IDENTITY)[0]


def test_withdrawn_is_gone_and_may_be_withdrawn_again(stamped):
    stamp.withdraw(DIGEST)
    stamp.withdraw(DIGEST)
    assert not stamped.exists()


def test_the_record_is_path_and_hash(stamped):
    sha256 = hashlib.sha256(stamped.read_bytes()).hexdigest()
    assert stamp.record(DIGEST) == {"path": str(stamped), "sha256": sha256}


def test_a_cache_that_cannot_be_written_is_a_storage_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPT2EXP_CACHE", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="set GPT2EXP_CACHE"):
        stamp.publish(stamp.content(IDENTITY, [], {}))
