"""A data configuration as a corpus: two token streams, a vocabulary, and the digest that identifies them."""

from __future__ import annotations

import hashlib
import json
import platform
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2exp.config import (
    DataConfig,
    PublishedShardData,
    ShakespeareData,
    ShardData,
    StdlibData,
    SyntheticData,
    TextData,
    cache_folder,
)
from gpt2exp.data.documents import Document, encode_documents, read_document, read_documents, tokenizer_for
from gpt2exp.data.download import fetch
from gpt2exp.data.published import open_published
from gpt2exp.data.shards import Shard, check_no_overlap, open_shards, stream_of
from gpt2exp.data.stdlib_source import in_validation, stdlib_documents
from gpt2exp.data.synthetic import TRAIN_SEED, VAL_SEED, synthetic_tokens
from gpt2exp.data.tokenizer import Tokenizer
from gpt2exp.data.windows import Tokens, TokenStream
from gpt2exp.errors import DataError

JSON = Any


@dataclass(frozen=True, eq=False)
class Corpus:
    """What a run reads. Equal `digest`s mean equal tokens in both splits, split alike.

    `tokenizer` is None where the data are ids from the start; `record` is what `run.json` remembers.
    """

    name: str
    train: TokenStream
    val: TokenStream
    vocab_size: int
    digest: str
    tokenizer: Tokenizer | None
    tokenizer_digest: str
    record: dict[str, JSON]


def load_corpus(data: DataConfig) -> Corpus:
    """The corpus that a data configuration describes.

    Raises:
        ConfigError: a vocabulary that uint16 cannot hold.
        DataError: missing, broken or too little data, or another vocabulary than configured.
        RefusedError: a needed download is not possible.
        StorageError: a file cannot be read or written.
    """
    corpus = _LOADERS[data.kind](data)
    for name, split in (("training", corpus.train), ("validation", corpus.val)):
        if split.num_tokens < 2:
            raise DataError(
                f"data={data.kind}: the {name} split has {split.num_tokens} tokens, expected at least 2: "
                "give more data or another split"
            )
    return corpus


def _load_stdlib(data: StdlibData) -> Corpus:
    documents = stdlib_documents()
    tokenizer = tokenizer_for(data.tokenizer, documents, data.vocab_size)
    val = [document for document in documents if in_validation(document.name, data.val_percent)]
    train = [document for document in documents if not in_validation(document.name, data.val_percent)]
    record = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "folder": sysconfig.get_path("stdlib"),
        "train_files": len(train),
        "val_files": len(val),
        "bytes": sum(len(document.data) for document in documents),
    }
    tokens = encode_documents(tokenizer, train), encode_documents(tokenizer, val)
    return _tokenized("stdlib", tokenizer, *tokens, record)


def _load_text(data: TextData) -> Corpus:
    documents = read_documents(data.paths, "data.paths")
    val_documents = read_documents(data.val_paths, "data.val_paths")
    _check_documents(documents, val_documents)
    tokenizer = tokenizer_for(data.tokenizer, [*documents, *val_documents], data.vocab_size, data.tokenizer_path)
    train = encode_documents(tokenizer, documents)
    if data.val_paths:
        val = encode_documents(tokenizer, val_documents)
    else:
        train, val = _cut(train, data.val_fraction)
    record = {"files": _file_records(documents), "val_files": _file_records(val_documents)}
    return _tokenized("text", tokenizer, train, val, record)


def _check_documents(documents: Sequence[Document], val_documents: Sequence[Document]) -> None:
    """Refuse anything but UTF-8, whatever the tokenizer, and validation text among the training text."""
    for document in (*documents, *val_documents):
        _ = document.text
    validation = {document.sha256: document.name for document in val_documents}
    for document in documents:
        if document.sha256 in validation:
            raise DataError(
                f"{document.name} of data.paths has the content of {validation[document.sha256]} of "
                "data.val_paths: training would see the validation text; name each file in one of them"
            )


def _load_tinyshakespeare(data: ShakespeareData) -> Corpus:
    document = _shakespeare_document(data)
    tokenizer = tokenizer_for(data.tokenizer, [document], data.vocab_size)
    text = document.text
    border = int(len(text) * (1 - data.val_fraction))
    record = {"files": _file_records([document])}
    tokens = tokenizer.encode(text[:border]), tokenizer.encode(text[border:])
    return _tokenized("tinyshakespeare", tokenizer, *tokens, record)


def _shakespeare_document(data: ShakespeareData) -> Document:
    if data.path is None:
        target = cache_folder() / "tinyshakespeare" / data.sha256 / "input.txt"
        return read_document(fetch(data.url, target, data.sha256, label="Tiny Shakespeare"))
    document = read_document(Path(data.path).expanduser())
    if document.sha256 != data.sha256:
        unix = hashlib.sha256(document.data.replace(b"\r\n", b"\n")).hexdigest() == data.sha256
        cause = "its newlines were converted to CRLF (restore LF)" if unix else "another text"
        raise DataError(
            f"data.path={data.path} has SHA256 {document.sha256}, expected {data.sha256}: {cause}; "
            f"for a text of your own use `data=text 'data.paths=[...]' data.tokenizer=chars`"
        )
    return document


def _load_shards(data: ShardData) -> Corpus:
    train = open_shards(data.train, data.vocab_size, "data.train")
    val = open_shards(data.val, data.vocab_size, "data.val")
    check_no_overlap(train, val)
    return _sharded("shards", train, val, data.vocab_size)


def _load_published(data: PublishedShardData) -> Corpus:
    train, val = open_published(data)
    return _sharded(data.kind, train, val, data.vocab_size)


def _sharded(name: str, train: list[Shard], val: list[Shard], vocab_size: int) -> Corpus:
    hashes = {"train": [shard.sha256 for shard in train], "val": [shard.sha256 for shard in val]}
    return Corpus(
        name=name,
        train=stream_of(train),
        val=stream_of(val),
        vocab_size=vocab_size,
        digest=_digest(hashes),
        tokenizer=None,
        tokenizer_digest=_ids_digest(vocab_size),
        record={"kind": name, "train": _shard_records(train), "val": _shard_records(val)},
    )


def _load_synthetic(data: SyntheticData) -> Corpus:
    train = TokenStream((synthetic_tokens(TRAIN_SEED, data.train_tokens, data.vocab_size),))
    val = TokenStream((synthetic_tokens(VAL_SEED, data.val_tokens, data.vocab_size),))
    return Corpus(
        name="synthetic",
        train=train,
        val=val,
        vocab_size=data.vocab_size,
        digest=_streams_digest(train, val),
        tokenizer=None,
        tokenizer_digest=_ids_digest(data.vocab_size),
        record={"kind": "synthetic", "generator": "lcg64", "seeds": [TRAIN_SEED, VAL_SEED]},
    )


_LOADERS: dict[str, Callable[[Any], Corpus]] = {
    "stdlib": _load_stdlib,
    "text": _load_text,
    "tinyshakespeare": _load_tinyshakespeare,
    "shards": _load_shards,
    "fineweb10B": _load_published,
    "synthetic": _load_synthetic,
}


def _tokenized(name: str, tokenizer: Tokenizer, train: Tokens, val: Tokens, record: dict[str, JSON]) -> Corpus:
    streams = TokenStream((train,)), TokenStream((val,))
    vocabulary = {"tokenizer": tokenizer.name, "vocabulary": tokenizer.source}
    return Corpus(
        name=name,
        train=streams[0],
        val=streams[1],
        vocab_size=tokenizer.vocab_size,
        digest=_streams_digest(*streams),
        tokenizer=tokenizer,
        tokenizer_digest=tokenizer.digest,
        record={"kind": name, **vocabulary, **record},
    )


def _cut(tokens: Tokens, val_fraction: float) -> tuple[Tokens, Tokens]:
    """The first part trains, the last `val_fraction` validates; rounded as nanoGPT rounds."""
    border = int(len(tokens) * (1 - val_fraction))
    return tokens[:border], tokens[border:]


def _file_records(documents: Sequence[Document]) -> list[dict[str, JSON]]:
    return [{"file": d.name, "bytes": len(d.data), "sha256": d.sha256} for d in documents]


def _shard_records(shards: Sequence[Shard]) -> list[dict[str, JSON]]:
    return [{"file": str(s.path), "tokens": len(s.tokens), "sha256": s.sha256} for s in shards]


def _streams_digest(train: TokenStream, val: TokenStream) -> str:
    return _digest({"train": _tokens_sha256(train), "val": _tokens_sha256(val)})


def _tokens_sha256(stream: TokenStream) -> str:
    digest = hashlib.sha256()
    for part in stream.parts:
        digest.update(part.astype("<u2", copy=False).tobytes())
    return digest.hexdigest()


def _ids_digest(vocab_size: int) -> str:
    """Stands for the tokenizer where there is none: ids below `vocab_size`, made elsewhere."""
    return _digest({"kind": "ids", "vocab_size": vocab_size})


def _digest(value: JSON) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
