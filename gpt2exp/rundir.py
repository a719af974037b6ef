"""A run's directory: the only module that knows its file names and formats.

run.json            status, digests, tiers, attempts, versions (rewritten atomically)
config.yaml         the resolved configuration
metrics.jsonl       one row an update: deterministic
evaluations.jsonl   one row an evaluation: deterministic
tracking.jsonl      one row a tracked step: token error, hash of the weights kept for their spectra: deterministic
timing.jsonl        seconds by phase
events.jsonl        what happened, in order
train.log           what was printed
checkpoints/        see gpt2exp.train.checkpoint
spectra/            see gpt2exp.spectral.snapshots; spectra*.csv are made from it
attempts/N/         rows that attempt N wrote after the checkpoint that a later attempt resumed from
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from gpt2exp import atomic
from gpt2exp.errors import RefusedError, StorageError

ROW_FILES = ("metrics", "evaluations", "tracking", "timing", "events")
LEFTOVERS = re.compile(r"\.lock|config\.yaml|\..*\.part")
"""What a process killed while claiming may leave: nothing was trained yet, so it may be claimed again."""
MULTIRUN_FILES = {"multirun.yaml", "protocol.json"}
"""What Hydra and the gate write beside the runs of a multirun."""
SCHEMA_VERSION = 1


class Status(Enum):
    """Where a run stands."""

    claimed = "claimed"
    running = "running"
    paused = "paused"
    stopped = "stopped"
    failed = "failed"
    measuring = "measuring"
    """Trained to the end; spectra are still to come."""
    complete = "complete"


class RunDirectory:
    """An open, locked run directory; close it to release the lock."""

    def __init__(self, path: Path, lock: FileLock, record: dict[str, Any]) -> None:
        self.path = path
        self.record = record
        self._lock = lock
        self._rows: dict[str, IO[bytes]] = {}

    @classmethod
    def claim(cls, path: Path, record: Mapping[str, Any], config_yaml: str) -> RunDirectory:
        """Take an unused directory exclusively and write its first `run.json`.

        Raises:
            RefusedError: the directory is used already.
        """
        lock = _locked(path)
        try:
            check_unused(path)
        except RefusedError:
            lock.release()
            raise
        run = cls(path, lock, {"schema": SCHEMA_VERSION, "status": Status.claimed.name, **record, "attempts": []})
        atomic.write_text(path / "config.yaml", config_yaml)
        run.save()
        return run

    @classmethod
    def reopen(cls, path: Path) -> RunDirectory:
        """Open an existing run to continue it.

        Raises:
            RefusedError: another process holds it.
            StorageError: its `run.json` is missing or damaged.
        """
        read_record(path)
        run = cls(path, _locked(path), read_record(path))
        run.trim_events()
        return run

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def attempt(self) -> int:
        """Number of the current attempt, from 1."""
        return len(self.record["attempts"])

    @property
    def set_aside(self) -> Path:
        """Where what the last attempt wrote, and the next one does not continue, is kept."""
        return self.written_by(self.attempt)

    def written_by(self, attempt: int) -> Path:
        """Where what an attempt wrote, and a later one did not continue, is kept."""
        return self.path / "attempts" / str(attempt)

    @property
    def spectra(self) -> Path:
        """Folder of the snapshots and of what was fitted to them."""
        return spectra_folder(self.path)

    @property
    def log_file(self) -> Path:
        """Where printed lines are kept."""
        return self.path / "train.log"

    def begin_attempt(self, details: Mapping[str, Any]) -> None:
        """Record a new attempt and set the status to running."""
        self.record["attempts"].append({"attempt": self.attempt + 1, "started": now(), **details})
        self.set_status(Status.running)

    def set_status(self, status: Status, reason: str | None = None, **more: Any) -> None:
        """Publish a new status; `more` goes into the record."""
        self.record.update(status=status.name, reason=reason, updated=now(), **more)
        if status is not Status.running and self.record["attempts"]:
            self.record["attempts"][-1].update(ended=now(), status=status.name, reason=reason)
        self.save()

    def save(self) -> None:
        """Rewrite `run.json` atomically."""
        atomic.write_json(self.path / "run.json", self.record)

    def append(self, kind: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows to `<kind>.jsonl`, each one line of strict JSON, handed to the system at once."""
        file = self._open(kind)
        for row in rows:
            file.write(json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n")
        file.flush()

    def event(self, name: str, **details: Any) -> None:
        """Add a row to `events.jsonl`."""
        self.append("events", [{"event": name, "time": now(), "attempt": self.attempt, **details}])

    def sync_rows(self) -> dict[str, int]:
        """Force all rows to disk; their byte offsets, for a checkpoint to remember."""
        offsets = {}
        for kind in ROW_FILES:
            file = self._open(kind)
            file.flush()
            os.fsync(file.fileno())
            offsets[kind] = file.tell()
        return offsets

    def trim_events(self) -> None:
        """Drop a last event that a kill cut in two: the next one must not be glued to it."""
        file = self.path / "events.jsonl"
        data = file.read_bytes() if file.exists() else b""
        if data and not data.endswith(b"\n"):
            atomic.write_bytes(file, data[: data.rfind(b"\n") + 1])

    def rewind(self, offsets: Mapping[str, int]) -> None:
        """Cut the row files at `offsets` (absent = 0); what is cut moves to `attempts/<last attempt>/`.

        Events are never cut: they tell what happened.
        """
        self._close_rows()
        for kind in (kind for kind in ROW_FILES if kind != "events"):
            self._rewind_file(kind, offsets.get(kind, 0))

    def _rewind_file(self, kind: str, offset: int) -> None:
        path = self.path / f"{kind}.jsonl"
        size = path.stat().st_size if path.exists() else 0
        if size < offset:
            raise StorageError(
                f"{path}: {size} bytes, but the checkpoint was written after {offset}; rows are missing, "
                "so the run cannot be continued from here"
            )
        if size == offset:
            return
        self.set_aside.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        atomic.write_bytes(self.set_aside / f"{kind}.jsonl", data[offset:])
        atomic.write_bytes(path, data[:offset])

    def close(self) -> None:
        """Close the row files and release the lock."""
        self._close_rows()
        self._lock.release()

    def _open(self, kind: str) -> IO[bytes]:
        assert kind in ROW_FILES, kind
        if kind not in self._rows:
            self._rows[kind] = (self.path / f"{kind}.jsonl").open("ab")
        return self._rows[kind]

    def _close_rows(self) -> None:
        for file in self._rows.values():
            file.close()
        self._rows.clear()


def check_unused(path: Path) -> None:
    """Refuse a directory that holds anything.

    Raises:
        RefusedError: saying how to continue it or where else to go.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise RefusedError(f"{path}: a run directory must be a folder of its own, not a link or a file")
    if path.is_dir() and not all(LEFTOVERS.fullmatch(entry.name) for entry in path.iterdir()):
        raise RefusedError(used_message(path))


def used_message(path: Path) -> str:
    """What to say about a directory in use."""
    if (path / "run.json").exists():
        return f"{path}: holds a run already; continue it (gpt2exp resume {path}) or set another hydra.run.dir"
    return f"{path}: not empty and not a run; set another hydra.run.dir"


def discard_if_empty(path: Path) -> None:
    """Remove the directories that Hydra made for a run that was refused before it began.

    Going up, a folder goes if it holds nothing, or only the `multirun.yaml` and the plan of a multirun none of whose
    runs began; the working directory and what it lies in always stay.
    """
    here = Path.cwd()
    for folder in (path, *path.parents):
        if here.is_relative_to(folder) or not folder.is_dir():
            return
        if {entry.name for entry in folder.iterdir()} <= MULTIRUN_FILES:
            for name in MULTIRUN_FILES:
                (folder / name).unlink(missing_ok=True)
        try:
            folder.rmdir()
        except OSError:
            return


def spectra_folder(run: Path) -> Path:
    """Folder of a run's snapshots and of what was fitted to them."""
    return run / "spectra"


def is_run(path: Path) -> bool:
    """Whether `path` is a run directory."""
    return (path / "run.json").is_file()


def find_runs(path: Path) -> list[Path]:
    """Run directories at or below `path`, sorted."""
    if is_run(path):
        return [path]
    return sorted(file.parent for file in path.rglob("run.json"))


def read_record(path: Path) -> dict[str, Any]:
    """The content of `run.json`.

    Raises:
        StorageError: missing, damaged, or written by a newer version.
    """
    file = path / "run.json"
    try:
        record = atomic.read_json(file)
    except FileNotFoundError:
        raise StorageError(f"{path}: no run.json there; expected a run directory") from None
    except ValueError as error:
        raise StorageError(f"{file}: damaged, not readable JSON ({error})") from None
    except OSError as error:
        raise StorageError(f"{file}: cannot be read ({error.strerror})") from None
    if not isinstance(record, dict):
        raise StorageError(f"{file}: damaged, not the record of a run")
    if record.get("schema", 0) > SCHEMA_VERSION:
        raise StorageError(f"{file}: written by a newer gpt2exp (schema {record['schema']})")
    return record


def read_rows(path: Path, kind: str) -> list[dict[str, Any]]:
    """Rows of `<kind>.jsonl`; an unterminated last line (a write that was cut) is left out."""
    file = path / f"{kind}.jsonl"
    return list(_rows_of(file.read_bytes())) if file.exists() else []


def _rows_of(data: bytes) -> Iterator[dict[str, Any]]:
    complete, _, _ = data.rpartition(b"\n")
    for line in complete.splitlines():
        yield json.loads(line)


def now() -> str:
    """UTC time, to the second, as recorded everywhere."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _locked(path: Path) -> FileLock:
    path.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RefusedError(f"{path}: another process is running it") from None
    return lock
