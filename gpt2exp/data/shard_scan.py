"""One pass over a shard's bytes: its SHA256, largest token and holes of zeros, remembered in the cache.

20 GB take about a minute to read, so what was found is kept per path, size and modification time.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from gpt2exp import atomic
from gpt2exp.config import cache_folder
from gpt2exp.data.shard_format import HEADER_BYTES
from gpt2exp.errors import StorageError

BLOCK_BYTES = 1 << 20
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShardScan:
    """What reading every byte of a shard tells; `zero_block` is the byte offset of a 1 MiB hole, if any."""

    sha256: str
    max_token: int
    zero_block: int | None


@dataclass(frozen=True)
class _FileKey:
    path: str
    size: int
    mtime_ns: int


def scan_shards(paths: Sequence[Path]) -> list[ShardScan]:
    """Scans in the order of `paths`; files not remembered are read in parallel (hashing frees the GIL).

    Raises:
        StorageError: a file cannot be read, or changes while it is read.
    """
    keys = [_key(path) for path in paths]
    known = [_recall(key) for key in keys]
    unread = [key for key, scan in zip(keys, known, strict=True) if scan is None]
    if unread:
        gigabytes = sum(key.size for key in unread) / 1e9
        logger.info("reading %d shards once to check them (%.2f GB)", len(unread), gigabytes)
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        fresh = iter(list(pool.map(_scan_and_remember, unread)))
    return [scan if scan is not None else next(fresh) for scan in known]


def _key(path: Path) -> _FileKey:
    try:
        status = path.stat()
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    return _FileKey(str(path.resolve()), status.st_size, status.st_mtime_ns)


def _scan_and_remember(key: _FileKey) -> ShardScan:
    try:
        scan = _scan(Path(key.path))
    except OSError as error:
        raise StorageError(f"cannot read {key.path}: {error.strerror or error}") from error
    if _key(Path(key.path)) != key:
        raise StorageError(f"{key.path} changed while it was read: wait until it is complete, then run again")
    _remember(key, scan)
    return scan


def _scan(path: Path) -> ShardScan:
    digest = hashlib.sha256()
    max_token, zero_block, offset = 0, None, HEADER_BYTES
    buffer = bytearray(BLOCK_BYTES)
    with path.open("rb") as file:
        digest.update(file.read(HEADER_BYTES))
        while count := file.readinto(buffer):
            block = memoryview(buffer)[:count]
            digest.update(block)
            highest = int(np.frombuffer(block[: count // 2 * 2], dtype="<u2").max(initial=0))
            if highest == 0 and count == BLOCK_BYTES and zero_block is None:
                zero_block = offset
            max_token, offset = max(max_token, highest), offset + count
    return ShardScan(digest.hexdigest(), max_token, zero_block)


def _memory_file(key: _FileKey) -> Path:
    return cache_folder() / "shards" / f"{hashlib.sha256(key.path.encode()).hexdigest()[:32]}.json"


def _recall(key: _FileKey) -> ShardScan | None:
    """What was remembered for exactly this path, size and time; a damaged memory counts as none."""
    try:
        stored = atomic.read_json(_memory_file(key))
        if any(stored[name] != value for name, value in asdict(key).items()):
            return None
        return ShardScan(**{field.name: stored[field.name] for field in fields(ShardScan)})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(key: _FileKey, scan: ShardScan) -> None:
    """Best effort: a cache that cannot be written costs another read next time, nothing else."""
    file = _memory_file(key)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_json(file, {**asdict(key), **asdict(scan)})
    except OSError as error:
        logger.warning("cannot remember the checks of %s: %s", key.path, error)
