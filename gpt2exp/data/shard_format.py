"""llm.c's token shard, one file at a time: a header of 256 little-endian int32, then uint16 tokens.

Header: [0] = 20240520, [1] = version 1, [2] = number of tokens, the rest 0 (karpathy/llm.c,
dev/data/data_common.py and llmc/dataloader.h).
"""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2exp.atomic import replacing
from gpt2exp.data.windows import Tokens
from gpt2exp.errors import DataError, StorageError

MAGIC = 20240520
LLAMA_MAGIC = 20240801
VERSION = 1
HEADER_BYTES = 1024
TOKEN_BYTES = 2
MAX_VOCAB_SIZE = 1 << 16

_AGAIN = "download or prepare it again"
_FOREIGN_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"<!doctype", f"a web page saved under a shard's name (an error page of the server?): {_AGAIN}"),
    (b"<html", f"a web page saved under a shard's name (an error page of the server?): {_AGAIN}"),
    (b"\x93numpy", "a NumPy .npy file (build-nanogpt's form): write it again as an llm.c shard"),
    (b"\x1f\x8b", "a gzip file: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd file: unpack it first"),
    (b"pk\x03\x04", "a zip file: unpack it first"),
    (b"par1", "a Parquet file of text: tokenize it into llm.c shards first"),
)


def check_shard(path: Path) -> int:
    """Number of tokens of a shard whose header and size are right; reads 1,024 bytes.

    Raises:
        DataError: the file is no shard, of another version or dtype, truncated or too long.
        StorageError: it cannot be read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    problem = _foreign_content(head, size) or _header_problem(head) or _size_problem(head, size)
    if problem:
        raise DataError(f"{path}: {problem}")
    return int(_header(head)[2])


def map_tokens(path: Path, num_tokens: int) -> Tokens:
    """The tokens of a checked shard, memory-mapped read-only; shape (num_tokens,)."""
    mapped = np.memmap(path, dtype="<u2", mode="r", offset=HEADER_BYTES, shape=(num_tokens,))
    return mapped.view(np.ndarray)


def write_shard(path: Path, tokens: NDArray[Any]) -> None:
    """Publish a 1-D integer array as a shard, atomically: `path` holds the old bytes or all the new ones.

    Raises:
        DataError: no tokens, or tokens that do not fit uint16.
        StorageError: the disk is too full or refuses.
    """
    _check_tokens(path, tokens)
    needed = HEADER_BYTES + TOKEN_BYTES * len(tokens)
    header = np.zeros(HEADER_BYTES // 4, dtype="<i4")
    header[:3] = MAGIC, VERSION, len(tokens)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        if free < needed:
            raise OSError(errno.ENOSPC, f"{needed:,} bytes needed, {free:,} free")
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.write(header.tobytes())
            file.write(np.ascontiguousarray(tokens, dtype="<u2").data)
    except OSError as error:
        raise StorageError(
            f"cannot write shard {path}: {error.strerror or error}; nothing was left behind: "
            "free some space or choose another folder, then run the command again"
        ) from error


def _check_tokens(path: Path, tokens: NDArray[Any]) -> None:
    assert tokens.ndim == 1 and np.issubdtype(tokens.dtype, np.integer), "tokens are a 1-D integer array"
    if len(tokens) == 0:
        raise DataError(f"cannot write shard {path}: it would hold no tokens")
    if len(tokens) > np.iinfo(np.int32).max:
        raise DataError(f"cannot write shard {path}: {len(tokens):,} tokens exceed the header's int32 count")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= MAX_VOCAB_SIZE:
        wrong = int(np.argmax((tokens < 0) | (tokens >= MAX_VOCAB_SIZE)))
        raise DataError(
            f"cannot write shard {path}: token {int(tokens[wrong])} at offset {wrong} does not fit uint16 (0 to 65,535)"
        )


def _header(head: bytes) -> NDArray[np.int32]:
    return np.frombuffer(head, dtype="<i4")


def _foreign_content(head: bytes, size: int) -> str | None:
    """What the file is when it is not a shard at all."""
    if size == 0:
        return f"0 bytes: an interrupted download or a full disk; {_AGAIN}"
    if head.startswith(b"version https://git-lfs"):
        real = re.search(rb"size (\d+)", head)
        stands_for = f" for a file of {int(real[1]):,} bytes" if real else ""
        return f"a Git LFS pointer of {size} bytes{stands_for}, not the data: run `git lfs pull` there"
    start = head.lstrip().lower()
    for prefix, meaning in _FOREIGN_STARTS:
        if start.startswith(prefix):
            return f"starts with {head.lstrip()[: len(prefix)]!r}: {meaning}"
    if size < HEADER_BYTES:
        return f"{size} bytes, shorter than a shard's header of {HEADER_BYTES}: truncated; {_AGAIN}"
    return None


def _header_problem(head: bytes) -> str | None:
    magic, version, num_tokens = (int(value) for value in _header(head)[:3])
    if magic == LLAMA_MAGIC:
        return (
            f"magic {LLAMA_MAGIC} is llm.c's Llama shard (uint32 tokens), expected {MAGIC} (GPT-2, uint16): "
            "tokenize with llm.c's `-m gpt-2`"
        )
    if head[:4] == MAGIC.to_bytes(4, "big"):
        return f"big-endian (magic {MAGIC} byte-swapped), expected little-endian: write it again as '<i4', '<u2'"
    if magic != MAGIC:
        return (
            f"magic 0x{magic & 0xFFFFFFFF:08x}, expected 0x{MAGIC:08x} ({MAGIC}): not an llm.c shard "
            "(nanoGPT's .bin files have no header); write it again as an llm.c shard"
        )
    if version != VERSION:
        return f"shard version {version}, supported {VERSION}: write it again with the pinned llm.c"
    if num_tokens <= 0:
        return f"header claims {num_tokens} tokens, expected at least 1: written by a broken script; {_AGAIN}"
    return None


def _size_problem(head: bytes, size: int) -> str | None:
    num_tokens, body = int(_header(head)[2]), size - HEADER_BYTES
    expected = TOKEN_BYTES * num_tokens
    if body == expected:
        return None
    if body == 2 * expected:
        return f"{num_tokens:,} tokens in {body:,} bytes are uint32, expected uint16: write it again as '<u2'"
    counts = f"header claims {num_tokens:,} tokens, the body holds {body / TOKEN_BYTES:,.1f}".removesuffix(".0")
    if body < expected:
        return f"{expected - body:,} bytes missing ({counts}): an interrupted download; {_AGAIN}"
    return f"{body - expected:,} bytes too many ({counts}): two writers or a wrong header; {_AGAIN}"
