"""Text to GPT-2's ids in uint16: our tokenizer against upstream's way."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from benchmarking import Benchmark, Measurement, Reach, Settings, alternate

from gpt2exp.data.gpt2_vocabulary import find_vocabulary, write_tiktoken_cache
from gpt2exp.data.tokenizer import Gpt2Tokenizer

if TYPE_CHECKING:
    from tiktoken import Encoding

END_OF_TEXT = 50_256


def measure(settings: Settings) -> Measurement:
    """Tokenize the standard library's source, a document a file, both ways in turn."""
    texts = documents(settings.choose(8_000_000, 1_000_000))
    tokenizer, encoding = Gpt2Tokenizer(find_vocabulary()), tiktokens_gpt2()

    def ours() -> list[bytes]:
        return [tokenizer.encode(text).tobytes() for text in texts]

    def peer() -> list[bytes]:
        return [upstreams_way(encoding.encode_ordinary(text)) for text in texts]

    same = ours() == peer()
    characters = sum(map(len, texts))
    note = f"{len(texts)} documents, {characters:,} characters, one process; bytes {'equal' if same else 'NOT equal'}"
    return replace(alternate(ours, peer, settings.choose(7, 5)), same=same, notes=(note,))


def upstreams_way(ids: list[int]) -> bytes:
    """A list of ids to uint16 as llm.c's dev/data/fineweb.py does: an array, a range check, a conversion."""
    tokens = np.array(ids)
    assert (tokens >= 0).all() and (tokens < 2**16).all(), "ids do not fit uint16"
    return tokens.astype(np.uint16).tobytes()


def tiktokens_gpt2() -> Encoding:
    """tiktoken's own "gpt2" encoding, from a cache folder of ours."""
    import tiktoken

    with TemporaryDirectory(prefix="gpt2exp_benchmark_") as folder:
        write_tiktoken_cache(Path(folder))
        before = os.environ.get("TIKTOKEN_CACHE_DIR")
        os.environ["TIKTOKEN_CACHE_DIR"] = folder
        try:
            return tiktoken.get_encoding("gpt2")
        finally:
            os.environ.pop("TIKTOKEN_CACHE_DIR")
            if before is not None:
                os.environ["TIKTOKEN_CACHE_DIR"] = before


def documents(characters: int) -> list[str]:
    """Source files of the standard library, in path order, until there are enough characters."""
    texts: list[str] = []
    for file in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if sum(map(len, texts)) >= characters:
            break
        if "site-packages" not in file.parts:
            texts.append(file.read_text(encoding="utf-8", errors="replace"))
    return [text for text in texts if text]


ROW = Benchmark(
    "text to uint16 ids, a document at a time",
    "upstream's way: encode_ordinary to a list, np.array, check, astype(uint16)",
    Reach(1.2, speed_up=True),
    measure,
)
