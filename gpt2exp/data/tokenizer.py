"""Text to token ids and back: bytes, characters, GPT-2's byte-pair encoding, and its single-byte ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpt2exp import config
from gpt2exp.data.gpt2_vocabulary import Vocabulary, find_vocabulary, r50k_bytes, single_byte_order
from gpt2exp.data.gpt2_vocabulary import write_tiktoken_cache as write_tiktoken_cache
from gpt2exp.data.windows import Tokens
from gpt2exp.errors import DataError

GPT2_VOCAB_SIZE = 50_257
END_OF_TEXT = 50_256
GPT2_PATTERN = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
"""How GPT-2 cuts text before merging (openai/gpt-2, src/encoder.py); possessive quantifiers for speed."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_UINT16_VOCAB = 1 << 16

IdSequence = Sequence[int] | NDArray[Any]


class Tokenizer(Protocol):
    """What every tokenizer does. `digest` is the SHA256 of what defines its ids."""

    @property
    def name(self) -> str:
        """The value of `data.tokenizer` that selects it."""

    @property
    def vocab_size(self) -> int:
        """Ids are 0 to vocab_size - 1."""

    @property
    def digest(self) -> str:
        """Equal digests mean equal ids for every text."""

    @property
    def source(self) -> str:
        """Where its vocabulary came from."""

    def encode(self, text: str) -> Tokens:
        """Ids of `text`, uint16, shape (number of tokens,). Lone surrogates count as U+FFFD."""

    def decode(self, ids: IdSequence) -> str:
        """Text of `ids`; invalid UTF-8 and ids without meaning become U+FFFD."""


class ByteTokenizer:
    """UTF-8 bytes, written with 256 ids; `byte_of_id` says which byte each id stands for."""

    vocab_size = 256
    source = "built in"

    def __init__(self) -> None:
        self.name = "bytes"
        self._byte_of_id = np.arange(256, dtype=np.uint8)
        self._id_of_byte = np.arange(256, dtype=np.uint16)
        self.digest = _digest({"kind": "bytes"})

    def encode(self, text: str) -> Tokens:
        """Ids of the UTF-8 bytes of `text`."""
        return self.encode_bytes(_utf8(text))

    def encode_bytes(self, data: bytes) -> Tokens:
        """Ids of any bytes, valid UTF-8 or not."""
        return self._id_of_byte[np.frombuffer(data, dtype=np.uint8)]

    def decode(self, ids: IdSequence) -> str:
        """Text of the bytes; an id that is no byte counts as an invalid one."""
        array = np.asarray(ids, dtype=np.int64)
        known = (array >= 0) & (array < 256)
        data = np.where(known, self._byte_of_id[np.where(known, array, 0)], 0xFF).astype(np.uint8)
        return data.tobytes().decode("utf-8", errors="replace")


class Gpt2ByteTokenizer(ByteTokenizer):
    """Bytes written with the ids GPT-2 gives single bytes: valid GPT-2 tokens without vocabulary files.

    GPT-2's own tokenizer decodes them exactly. Its vocabulary counts as GPT-2's, so that the model keeps its
    shape.
    """

    vocab_size = GPT2_VOCAB_SIZE

    def __init__(self) -> None:
        super().__init__()
        self.name = "gpt2_bytes"
        self._byte_of_id = np.array(single_byte_order(), dtype=np.uint8)
        self._id_of_byte = np.argsort(self._byte_of_id).astype(np.uint16)
        self.digest = _digest({"kind": "gpt2_bytes", "byte_of_id": self._byte_of_id.tolist()})


class CharTokenizer:
    """The distinct characters of a corpus in code-point order (nanoGPT's shakespeare_char).

    Raises:
        DataError: no characters at all, or more distinct ones than uint16 has ids.
    """

    name = "chars"
    source = "the characters of the corpus"

    def __init__(self, text: str) -> None:
        seen = np.zeros(0x110000, dtype=bool)
        seen[_code_points(text)] = True
        self._code_points = np.flatnonzero(seen).astype(np.uint32)
        self.vocab_size = len(self._code_points)
        if self.vocab_size == 0:
            raise DataError("data.tokenizer=chars: the corpus is empty, so it defines no characters")
        if self.vocab_size > _MAX_UINT16_VOCAB:
            raise DataError(
                f"data.tokenizer=chars: the corpus has {self.vocab_size:,} distinct characters, at most "
                f"{_MAX_UINT16_VOCAB:,} fit uint16 tokens; use data.tokenizer=bytes or gpt2"
            )
        self.digest = _digest({"kind": "chars", "code_points": self._code_points.tolist()})

    def encode(self, text: str) -> Tokens:
        """Ids of the characters.

        Raises:
            DataError: a character that the corpus does not contain.
        """
        points = _code_points(text)
        ids = np.searchsorted(self._code_points, points)
        unknown = self._code_points[np.minimum(ids, self.vocab_size - 1)] != points
        if unknown.any():
            where = int(np.argmax(unknown))
            raise DataError(
                f"character {chr(points[where])!r} at position {where} is not among the corpus's "
                f"{self.vocab_size} characters (data.tokenizer=chars): remove it or use data.tokenizer=bytes"
            )
        return ids.astype(np.uint16)

    def decode(self, ids: IdSequence) -> str:
        """Characters of `ids`; ids outside the vocabulary become U+FFFD."""
        array = np.asarray(ids, dtype=np.int64)
        known = (array >= 0) & (array < self.vocab_size)
        points = np.full(len(array), ord(_REPLACEMENT), dtype="<u4")
        points[known] = self._code_points[array[known]]
        return points.tobytes().decode("utf-32-le", errors="replace")


class Gpt2Tokenizer:
    """GPT-2's byte-pair encoding by tiktoken: 50,256 ranks and <|endoftext|> (never produced by `encode`)."""

    name = "gpt2"
    vocab_size = GPT2_VOCAB_SIZE

    def __init__(self, vocabulary: Vocabulary) -> None:
        import tiktoken

        self.source = vocabulary.source
        ranks_sha256 = hashlib.sha256(r50k_bytes(vocabulary.ranks)).hexdigest()
        self.digest = _digest({"kind": "gpt2", "ranks_sha256": ranks_sha256, "end_of_text": END_OF_TEXT})
        self._encoding = tiktoken.Encoding(
            name="gpt2exp_gpt2",
            pat_str=GPT2_PATTERN,
            mergeable_ranks=vocabulary.ranks,
            special_tokens={"<|endoftext|>": END_OF_TEXT},
            explicit_n_vocab=GPT2_VOCAB_SIZE,
        )

    def encode(self, text: str) -> Tokens:
        """Ids of `text`; the string "<|endoftext|>" in it is ordinary text."""
        try:
            ids = self._encoding.encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError:
            # encode_to_numpy refuses lone surrogates, which encode_ordinary would replace.
            ids = self._encoding.encode_to_numpy(_utf8(text).decode("utf-8"), disallowed_special=())
        return np.asarray(ids).astype(np.uint16)

    def decode(self, ids: IdSequence) -> str:
        """Text of `ids`; ids outside the vocabulary (a padded model's) become U+FFFD."""
        invalid = b"\xff"
        parts = (self._encoding.decode_single_token_bytes(int(i)) if 0 <= i < GPT2_VOCAB_SIZE else invalid for i in ids)
        return b"".join(parts).decode("utf-8", errors="replace")


def make_tokenizer(kind: config.Tokenizer, corpus_text: str = "", path: str | None = None) -> Tokenizer:
    """The tokenizer of a configuration; `corpus_text` defines `chars`, `path` points at GPT-2's vocabulary.

    Raises:
        DataError: GPT-2's vocabulary was not found, or too many characters.
    """
    if kind is config.Tokenizer.chars:
        return CharTokenizer(corpus_text)
    if kind is config.Tokenizer.gpt2:
        return Gpt2Tokenizer(find_vocabulary(path))
    return ByteTokenizer() if kind is config.Tokenizer.bytes else Gpt2ByteTokenizer()


def _utf8(text: str) -> bytes:
    """UTF-8 of `text`; surrogate pairs are joined and lone ones replaced, as tiktoken's encoder does."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
