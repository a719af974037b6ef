"""Checkpoints: a folder that is whole or not there, verified by SHA256 before a byte is parsed.

    checkpoints/step_000250/{weights,slots}.safetensors, state.json, manifest.json (hashes; written last)

Neither safetensors nor torch.load notices a flipped byte in the data (measured), hence the manifest.
The learning rate, decay and betas are not in here: they follow from configuration and step.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save_file

from gpt2exp import atomic
from gpt2exp.engines.base import Array, EngineState
from gpt2exp.errors import StorageError

FOLDER = re.compile(r"step_(\d{6,})")
MANIFEST = "manifest.json"
FILES = ("weights.safetensors", "slots.safetensors", "state.json")
FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: the engine's state and the row offsets it was taken at."""

    path: Path
    state: EngineState
    offsets: Mapping[str, int]


def folder_name(step: int) -> str:
    """`step_000250`."""
    return f"step_{step:06d}"


def save(folder: Path, state: EngineState, offsets: Mapping[str, int]) -> Path:
    """Write a checkpoint under `folder` and publish it with one rename.

    Raises:
        StorageError: the disk refused; nothing under `folder` has changed.
    """
    target = folder / folder_name(state.step)
    partial = folder / f".{target.name}.part"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write_files(partial, state, offsets)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        atomic.fsync_folder(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise StorageError(f"{target}: cannot write the checkpoint: {error}; earlier checkpoints are intact") from None
    return target


def _write_files(folder: Path, state: EngineState, offsets: Mapping[str, int]) -> None:
    save_file(dict(state.weights), folder / "weights.safetensors")
    save_file(dict(state.slots), folder / "slots.safetensors")
    details = {
        "format": FORMAT,
        "step": state.step,
        "offsets": dict(offsets),
        "weights": list(state.weights),
        "slots": list(state.slots),
    }
    (folder / "state.json").write_text(json.dumps(details, indent=1), encoding="utf-8")
    for name in FILES:
        atomic.fsync_file(folder / name)
    hashes = {name: atomic.sha256_file(folder / name) for name in FILES}
    atomic.write_json(folder / MANIFEST, {"format": FORMAT, "step": state.step, "sha256": hashes})


def prune(folder: Path, keep: int) -> None:
    """Delete all but the `keep` highest steps, and leftovers of interrupted saves."""
    for leftover in folder.glob(".step_*.part"):
        shutil.rmtree(leftover, ignore_errors=True)
    for step in steps(folder)[: -keep or None]:
        shutil.rmtree(folder / folder_name(step), ignore_errors=True)


def steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint folder, ascending. By step, not by time: clocks go backwards."""
    if not folder.is_dir():
        return []
    return sorted(int(match[1]) for entry in folder.iterdir() if (match := FOLDER.fullmatch(entry.name)))


def latest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The highest step that verifies; each one that does not is reported through `warn` and passed over."""
    for step in reversed(steps(folder)):
        try:
            return load(folder / folder_name(step))
        except StorageError as error:
            warn(f"{error}; trying the one before")
    return None


def move_later(folder: Path, step: int, destination: Path) -> None:
    """Move checkpoints after `step` out of the way: damaged ones must not outrank those still to come."""
    for later in (later for later in steps(folder) if later > step):
        destination.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(destination / folder_name(later), ignore_errors=True)
        (folder / folder_name(later)).rename(destination / folder_name(later))


def load(path: Path) -> Checkpoint:
    """Read a checkpoint; every file is hashed before it is parsed.

    Raises:
        StorageError: a file is missing, foreign or damaged.
    """
    manifest = _manifest(path)
    contents = {name: _verified(path / name, manifest["sha256"][name]) for name in FILES}
    details = json.loads(contents["state.json"])
    if details.get("format", 0) > FORMAT:
        raise StorageError(f"{path}: written by a newer gpt2exp (checkpoint format {details['format']})")
    weights = _ordered(parse_tensors(contents["weights.safetensors"]), details["weights"])
    slots = _ordered(parse_tensors(contents["slots.safetensors"]), details["slots"])
    return Checkpoint(path, EngineState(details["step"], weights, slots), details["offsets"])


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = atomic.read_json(path / MANIFEST)
    except FileNotFoundError:
        raise StorageError(f"{path}: no {MANIFEST}: the save was interrupted") from None
    except ValueError as error:
        raise StorageError(f"{path / MANIFEST}: {error}") from None
    if not isinstance(manifest, dict) or sorted(manifest.get("sha256", {})) != sorted(FILES):
        raise StorageError(f"{path / MANIFEST}: lists other files than {', '.join(FILES)}")
    return manifest


def _verified(file: Path, sha256: str) -> bytes:
    if file.is_symlink() or not file.is_file():
        raise StorageError(f"{file}: missing, or not a plain file")
    found = atomic.sha256_file(file)
    if found != sha256:
        raise StorageError(f"{file}: damaged: SHA256 {found[:12]}..., its manifest says {sha256[:12]}...")
    return file.read_bytes()


def _ordered(tensors: Mapping[str, Array], names: list[str]) -> dict[str, Array]:
    return {name: tensors[name] for name in names if name in tensors}
