"""FineWeb 10B: every file is what was published, or named."""

from __future__ import annotations

import numpy as np
import pytest

from gpt2exp.config import PublishedShardData
from gpt2exp.data import published
from gpt2exp.data.corpora import load_corpus
from gpt2exp.data.published import PublishedShard, published_shards
from gpt2exp.data.shards import write_shard
from gpt2exp.errors import DataError


def data(folder, **more):
    return PublishedShardData(source="kjj0/fineweb10B-gpt2", folder=str(folder), vocab_size=50_257, **more)


def test_the_set_is_one_pass_of_19560_steps():
    """10,255,324,043 training tokens: 19,560 windows of 524,288 and one token more."""
    val, *train = published_shards("fineweb10B")
    assert val.file == "fineweb_val_000000.bin" and len(train) == 103
    tokens = sum(shard.tokens for shard in train)
    assert tokens == 10_255_324_043 and (tokens - 1) // 524_288 == 19_560
    assert [shard.file for shard in train] == [f"fineweb_train_{number:06d}.bin" for number in range(1, 104)]
    assert train[-1].bytes == 110_649_110 and val.bytes == 200_001_024
    known = [shard.sha256 for shard in (val, *train) if shard.sha256]
    assert len(known) == 15 and len(set(known)) == 15 and all(len(sha256) == 64 for sha256 in known)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A set of three files of a few tokens, under the real names."""
    random, shards = np.random.default_rng(0), []
    sizes = {"fineweb_val_000000.bin": 50, "fineweb_train_000001.bin": 90, "fineweb_train_000002.bin": 70}
    for file, tokens in sizes.items():
        write_shard(tmp_path / file, random.integers(0, 50_257, tokens).astype(np.uint16))
        shards.append(PublishedShard(file, tokens, ""))
    monkeypatch.setattr(published, "published_shards", lambda name: tuple(shards))
    return tmp_path, shards


def test_its_corpus_is_the_shards_in_order(small):
    folder, _ = small
    corpus = load_corpus(data(folder))
    assert (corpus.name, corpus.train.num_tokens, corpus.val.num_tokens) == ("fineweb10B", 160, 50)


def test_fewer_training_shards_may_be_asked_for(small):
    folder, _ = small
    (folder / "fineweb_train_000002.bin").unlink()
    assert load_corpus(data(folder, train_shards=1)).train.num_tokens == 90


def test_missing_files_are_counted_and_the_first_is_named(small):
    folder, _ = small
    (folder / "fineweb_train_000002.bin").unlink()
    with pytest.raises(DataError, match=r"1 of 3 files are not in .*\(first: fineweb_train_000002.bin; .*data.folder"):
        load_corpus(data(folder))


def test_another_length_is_refused(small):
    folder, shards = small
    shards[1] = PublishedShard(shards[1].file, 91, "")
    with pytest.raises(DataError, match="90 tokens, published with 91"):
        load_corpus(data(folder))


def test_other_content_is_refused_where_the_hash_is_known(small):
    folder, shards = small
    shards[0] = PublishedShard(shards[0].file, 50, "ab" * 32)
    with pytest.raises(DataError, match=r"SHA256 .*published with abababababab"):
        load_corpus(data(folder))
