"""The queue of weights whose spectra are still to be fitted, and what was fitted: files, so that any process may die.

    spectra/pending/step_000125.safetensors   the matrices inside the blocks, fp32, read-only, self-describing
    spectra/pending/step_000125.json          its status: hash, attempts, who is fitting it; written second
    spectra/step_000125.npz                   the eigenvalues of every slice, float64
    spectra/step_000125.json                  the fits; written last
    spectra/weights/step_000125.safetensors   the snapshot, where tracking.keep_weights asks for it

A snapshot counts from the moment its status file exists, a result from the moment its JSON does.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from gpt2exp import atomic
from gpt2exp.errors import StorageError
from gpt2exp.spectral.records import Array
from gpt2exp.spectral.slices import Slice

FORMAT = 1
STATUS_FILE = re.compile(r"step_(\d{6,})\.json")
HEADER = "gpt2exp"
"""One metadata key: safetensors writes several in no fixed order, and the file's bytes are hashed."""


@dataclass(frozen=True)
class Header:
    """What a snapshot says of itself, so that it can be fitted without the run's configuration."""

    step: int
    tokens: int
    seed: int
    backend: str
    randomize: bool
    keep_weights: bool
    slices: tuple[Slice, ...]


class SnapshotConflictError(StorageError):
    """A step already has a snapshot or a result, of other weights."""


def file_name(step: int) -> str:
    """`step_000125`, without a suffix."""
    return f"step_{step:06d}"


@dataclass(frozen=True)
class Queue:
    """The snapshots and results of one run, under its `spectra` folder."""

    folder: Path

    @property
    def pending_folder(self) -> Path:
        """Where snapshots wait."""
        return self.folder / "pending"

    def snapshot_file(self, step: int) -> Path:
        """The weights of a pending step."""
        return self.pending_folder / f"{file_name(step)}.safetensors"

    def status_file(self, step: int) -> Path:
        """What is happening to a pending step."""
        return self.pending_folder / f"{file_name(step)}.json"

    def result_file(self, step: int) -> Path:
        """The fits of a step."""
        return self.folder / f"{file_name(step)}.json"

    def eigenvalues_file(self, step: int) -> Path:
        """The eigenvalues of a step."""
        return self.folder / f"{file_name(step)}.npz"

    def weights_file(self, step: int) -> Path:
        """The kept weights of a step."""
        return self.folder / "weights" / f"{file_name(step)}.safetensors"

    def pending(self) -> list[int]:
        """Steps that wait, ascending."""
        return _steps(self.pending_folder)

    def done(self) -> list[int]:
        """Steps that have a result, ascending."""
        return _steps(self.folder)

    def status(self, step: int) -> dict[str, Any]:
        """Status of a pending step; empty when it is not pending (any more)."""
        try:
            status = atomic.read_json(self.status_file(step))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise StorageError(f"{self.status_file(step)}: damaged: {error}") from None
        return dict(status)

    def known_hash(self, step: int) -> str | None:
        """SHA256 of the snapshot that is pending, or was fitted, at `step`."""
        status = self.status(step)
        if status:
            return str(status["sha256"])
        return str(self.result(step)["snapshot_sha256"]) if self.result_file(step).exists() else None

    def publish(self, header: Header, matrices: Mapping[str, Array]) -> str:
        """Write a snapshot and queue it; its SHA256. The same bits, queued or fitted before, are not queued twice.

        Raises:
            SnapshotConflictError: other weights were queued or fitted under this step.
            StorageError: the disk refused.
        """
        self.pending_folder.mkdir(parents=True, exist_ok=True)
        target, known = self.snapshot_file(header.step), self.known_hash(header.step)
        try:
            with atomic.replacing(target) as temporary:
                _save(temporary, header, matrices)
                sha256 = atomic.sha256_file(temporary)
                if known not in (None, sha256):
                    raise SnapshotConflictError(f"{target}: step {header.step} has a snapshot of other weights")
            target.chmod(0o444)
            if known is None:
                status = {"sha256": sha256, "keep_weights": header.keep_weights, "state": "queued", "attempts": 0}
                atomic.write_json(self.status_file(header.step), {"format": FORMAT, "step": header.step, **status})
            elif self.result_file(header.step).exists():
                self.discard(header.step)
        except OSError as error:
            raise StorageError(f"{target}: cannot write the snapshot: {error}") from None
        return sha256

    def update_status(self, step: int, **changes: Any) -> None:
        """Publish changes to the status of a pending step."""
        atomic.write_json(self.status_file(step), {**self.status(step), **changes})

    def discard(self, step: int) -> None:
        """Forget a pending step whose result stands."""
        self.status_file(step).unlink(missing_ok=True)
        self.snapshot_file(step).unlink(missing_ok=True)

    def retire(self, step: int, keep_weights: bool) -> None:
        """Take a fitted step out of the queue; its weights go, or move where they are kept."""
        if keep_weights and self.snapshot_file(step).exists():
            self.weights_file(step).parent.mkdir(exist_ok=True)
            self.snapshot_file(step).rename(self.weights_file(step))
            atomic.fsync_folder(self.weights_file(step).parent)
        self.discard(step)

    def set_aside(self, step: int, destination: Path) -> None:
        """Move all that is known of a step away: another attempt has other weights there."""
        files = (self.status_file, self.snapshot_file, self.result_file, self.eigenvalues_file, self.weights_file)
        for file in (of(step) for of in files):
            if file.exists():
                target = destination / file.relative_to(self.folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(file, target)

    def result(self, step: int) -> dict[str, Any]:
        """The fits of a step.

        Raises:
            StorageError: damaged, or written by a newer version.
        """
        try:
            result = atomic.read_json(self.result_file(step))
        except (OSError, ValueError) as error:
            raise StorageError(f"{self.result_file(step)}: cannot be read: {error}") from None
        if not isinstance(result, dict) or result.get("format", FORMAT + 1) > FORMAT:
            raise StorageError(f"{self.result_file(step)}: damaged, or written by a newer gpt2exp")
        return result

    def results(self) -> list[dict[str, Any]]:
        """All fits, by step."""
        return [self.result(step) for step in self.done()]

    def eigenvalues(self, step: int) -> dict[str, Array]:
        """Eigenvalues by name of slice, ascending, checked against the hash in the result.

        Raises:
            StorageError: missing or damaged.
        """
        file, expected = self.eigenvalues_file(step), self.result(step)["eigenvalues_sha256"]
        if not file.is_file() or atomic.sha256_file(file) != expected:
            raise StorageError(f"{file}: missing or damaged: its result says SHA256 {expected[:12]}...")
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}


def read_header(file: Path) -> Header:
    """What a snapshot says of itself.

    Raises:
        StorageError: not a snapshot, or of a newer version.
    """
    try:
        with safe_open(file, framework="numpy") as tensors:
            content = json.loads((tensors.metadata() or {})[HEADER])
    except Exception as error:
        raise StorageError(f"{file}: not a snapshot of gpt2exp: {error}") from None
    if content.pop("format") > FORMAT:
        raise StorageError(f"{file}: written by a newer gpt2exp")
    slices = tuple(Slice(**fields) for fields in content.pop("slices"))
    return Header(**content, slices=slices)


def read_slice(file: Path, wanted: Slice) -> Array:
    """One slice of a snapshot, (rows, columns), fp32."""
    with safe_open(file, framework="numpy") as tensors:
        return np.asarray(tensors.get_slice(wanted.stored_in)[wanted.start : wanted.stop])


def _save(file: Path, header: Header, matrices: Mapping[str, Array]) -> None:
    stored = {name: np.ascontiguousarray(matrices[name], dtype=np.float32) for name in stored_names(header.slices)}
    save_file(stored, file, metadata={HEADER: json.dumps({"format": FORMAT, **asdict(header)})})


def stored_names(slices: Sequence[Slice]) -> list[str]:
    """Names of the stored matrices that slices are cut from, each once."""
    return list(dict.fromkeys(part.stored_in for part in slices))


def _steps(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(match[1]) for entry in folder.iterdir() if (match := STATUS_FILE.fullmatch(entry.name)))
