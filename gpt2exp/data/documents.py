"""Files of text as documents, and documents as tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpt2exp import config
from gpt2exp.data.paths import expand
from gpt2exp.data.tokenizer import ByteTokenizer, Tokenizer, make_tokenizer
from gpt2exp.data.windows import Tokens
from gpt2exp.errors import DataError, StorageError


@dataclass(frozen=True)
class Document:
    """The bytes of one file, untouched, and the name to call it by."""

    name: str
    data: bytes

    @property
    def sha256(self) -> str:
        """SHA256 of the bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def text(self) -> str:
        """The bytes as UTF-8; newlines and a byte-order mark stay as they are.

        Raises:
            DataError: the bytes are not UTF-8.
        """
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            utf16 = self.data.startswith((b"\xff\xfe", b"\xfe\xff"))
            encoding, likely = ("UTF-16", "a UTF-16 file") if utf16 else ("ENCODING", "another encoding")
            raise DataError(
                f"{self.name} is not UTF-8: byte 0x{self.data[error.start]:02x} at offset {error.start:,} "
                f"({error.reason}), {likely}; convert it with `iconv -f {encoding} -t UTF-8`"
            ) from error


def read_document(path: Path, name: str | None = None) -> Document:
    """One file as a document.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        return Document(name or str(path), path.read_bytes())
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error


def read_documents(patterns: Sequence[str], key: str) -> list[Document]:
    """Every file that one of the paths or globs names, once each, in path order; `key` is for messages.

    Raises:
        DataError: a pattern that names no file.
        StorageError: a file cannot be read.
    """
    paths: set[Path] = set()
    for pattern in patterns:
        found = expand(pattern)
        if not found:
            folder = Path(pattern).expanduser().is_dir()
            problem = "is a folder: name its files, e.g. with /*.txt" if folder else "matches no file"
            raise DataError(f"{key}: {pattern} {problem} (current directory {Path.cwd()}); correct the path or glob")
        paths.update(found)
    return [read_document(path) for path in sorted(paths, key=Path.as_posix)]


def tokenizer_for(
    kind: config.Tokenizer, documents: Sequence[Document], vocab_size: int | None, path: str | None = None
) -> Tokenizer:
    """The configured tokenizer, checked against `data.vocab_size` where that is given.

    Raises:
        DataError: it cannot be built, or has another vocabulary.
    """
    texts = [document.text for document in documents] if kind is config.Tokenizer.chars else []
    tokenizer = make_tokenizer(kind, "".join(texts), path)
    if vocab_size is not None and vocab_size != tokenizer.vocab_size:
        raise DataError(
            f"data.vocab_size={vocab_size}, but data.tokenizer={tokenizer.name} has {tokenizer.vocab_size} "
            "ids for this text: other text or another tokenizer than meant; set "
            f"data.vocab_size={tokenizer.vocab_size} or null"
        )
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: Sequence[Document]) -> Tokens:
    """The documents' tokens one after the other, with nothing between them; each is encoded on its own.

    Raises:
        DataError: a document is not UTF-8 (except for byte tokenizers, which take any bytes).
    """
    if isinstance(tokenizer, ByteTokenizer):
        return tokenizer.encode_bytes(b"".join(document.data for document in documents))
    return np.concatenate([np.empty(0, dtype=np.uint16), *(tokenizer.encode(document.text) for document in documents)])
