"""Publish files so that a reader sees the old one or the new one, never half of either.

A name appears by `rename` after the bytes and the folder entry are on disk: without the fsync of the
folder a power loss can bring the old file back (measured on an ext4 image).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def fsync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` durable. No-op where folders cannot be opened (Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is synced and renamed over `path`.

    On any error the temporary file is removed and `path` keeps its old content.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        fsync_file(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        fsync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def fsync_file(path: Path) -> None:
    """Force the content of `path` to disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def write_bytes(path: Path, data: bytes) -> None:
    """Publish `data` under `path` atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Publish `text` (UTF-8, newlines as given) under `path` atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Publish `value` as readable JSON; NaN and infinity are refused, not written."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON and refuse NaN and infinity, which Python's reader would accept.

    Raises:
        ValueError: the file is not strict JSON.
    """
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)


def sha256_file(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """SHA256 of a file, in hex; `progress` is told the bytes of each block read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            if progress:
                progress(len(block))
    return digest.hexdigest()


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
