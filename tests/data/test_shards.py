from __future__ import annotations

import hashlib
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from gpt2exp.data import shard_format, shard_scan
from gpt2exp.data.shards import check_no_overlap, open_shards, stream_of, write_shard
from gpt2exp.errors import ConfigError, DataError, StorageError

MAGIC = 20240520


def header(magic: int = MAGIC, version: int = 1, num_tokens: int = 100, order: str = "<") -> bytes:
    return struct.pack(f"{order}256i", magic, version, num_tokens, *[0] * 253)


def body(count: int = 100, dtype: str = "<u2") -> bytes:
    return np.arange(1, count + 1).astype(dtype).tobytes()


@pytest.fixture
def good_set(tmp_path, make_tokens) -> Path:
    """Three numbered shards, the last one partial."""
    for i, count in enumerate((100, 100, 37), start=1):
        write_shard(tmp_path / f"fineweb_train_{i:06d}.bin", make_tokens(count, seed=i))
    return tmp_path


def test_written_shards_are_llm_c_shards(tmp_path):
    write_shard(tmp_path / "x_train_000001.bin", np.arange(1, 101))
    assert (tmp_path / "x_train_000001.bin").read_bytes() == header() + body()


def test_opening_reads_what_was_written_in_order(good_set, make_tokens):
    shards = open_shards(str(good_set / "fineweb_train_*.bin"), 50257)
    assert [shard.path.name[-8:] for shard in shards] == ["0001.bin", "0002.bin", "0003.bin"]
    stream = stream_of(shards)
    expected = np.concatenate([make_tokens(count, seed=i) for i, count in ((1, 100), (2, 100), (3, 37))])
    np.testing.assert_array_equal(stream.read(0, 237), expected)
    assert all(isinstance(part.base, np.memmap) and not part.flags.writeable for part in stream.parts)


def test_the_recorded_hash_is_that_of_the_file(good_set):
    for shard in open_shards(str(good_set / "fineweb_train_*.bin"), 50257):
        assert shard.sha256 == hashlib.sha256(shard.path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("folder", "name", "pattern"),
    [
        ("with space", "my set_train_000001.bin", "my set_train_*.bin"),
        ("données", "naïve_été_train_000001.bin", "naïve_été_*.bin"),
        ("v[1]", "x_train_000001.bin", "x_train_*.bin"),
        ("plain", "x [ab]_train_000001.bin", "x [ab]_train_*.bin"),
        ("plain", "x [ab]_train_000001.bin", "x [ab]_train_000001.bin"),
        ("plain", "xa_train_000001.bin", "x[ab]_train_*.bin"),
    ],
)
def test_any_file_name_works(tmp_path, monkeypatch, make_tokens, folder, name, pattern):
    monkeypatch.chdir(tmp_path)
    write_shard(Path(folder) / name, make_tokens(10))
    assert [shard.path.name for shard in open_shards(f"{folder}/{pattern}", 50257)] == [name]
    assert [shard.path.name for shard in open_shards(str(tmp_path / folder / pattern), 50257)] == [name]


def test_a_literal_name_wins_over_its_reading_as_a_glob(tmp_path, make_tokens):
    write_shard(tmp_path / "x[1]_000001.bin", make_tokens(10, seed=1))
    write_shard(tmp_path / "x1_000001.bin", make_tokens(10, seed=2))
    (shard,) = open_shards(str(tmp_path / "x[1]_*.bin"), 50257)
    assert shard.path.name == "x[1]_000001.bin"


BROKEN = {
    "1 wrong magic": (header(magic=0x1234) + body(), ["0x00001234", "20240520", "nanoGPT"]),
    "1 Llama shard": (header(magic=20240801, version=7) + body(100, "<u4"), ["Llama", "uint32"]),
    "2 web page": (b"<!DOCTYPE html><html>404</html>" + b" " * 2000, ["<!DOCTYPE", "web page"]),
    "2 web page, lower case": (b"\n<html><body>sorry" + b" " * 2000, ["web page"]),
    "3 LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 200001024\n",
        ["Git LFS pointer", "200,001,024", "git lfs pull"],
    ),
    "4 empty": (b"", ["0 bytes"]),
    "4 shorter than a header": (header()[:500], ["500 bytes", "1024"]),
    "5 version": (header(version=2) + body(), ["version 2", "supported 1"]),
    "6 truncated": (header() + body(90), ["20 bytes missing", "claims 100 tokens", "holds 90"]),
    "6 truncated inside a token": (header() + body()[:-3], ["3 bytes missing", "98.5"]),
    "7 count below body": (header(num_tokens=90) + body(), ["20 bytes too many", "claims 90", "holds 100"]),
    "8 no tokens": (header(num_tokens=0), ["claims 0 tokens"]),
    "8 negative count": (header(num_tokens=-5) + body(), ["claims -5 tokens"]),
    "11 token beyond the vocabulary": (
        header(num_tokens=3) + np.array([5, 50257, 60000], "<u2").tobytes(),
        ["token 50257 at offset 1", "vocab_size=50257"],
    ),
    "11 only the first token beyond": (
        header(num_tokens=1_200_000) + np.array([50257] + [1] * 1_199_999, "<u2").tobytes(),
        ["token 50257 at offset 0"],
    ),
    "12 uint32": (header() + body(100, "<u4"), ["uint32", "uint16"]),
    "12 big-endian": (header(order=">") + body(100, ">u2"), ["big-endian", "little-endian"]),
    "18 hole": (
        header(num_tokens=1 << 20) + body(10) + bytes((1 << 21) - 20),
        ["only zeros", "1,049,600", "interrupted"],
    ),
    "NumPy file": (b"\x93NUMPY\x01\x00" + bytes(2000), [".npy"]),
    "Parquet file": (b"PAR1" + bytes(2000), ["Parquet"]),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_named_with_found_and_expected(good_set, kind):
    content, said = BROKEN[kind]
    (good_set / "fineweb_train_000002.bin").write_bytes(content)
    with pytest.raises(DataError) as caught:
        open_shards(str(good_set / "fineweb_train_*.bin"), 50257)
    message = str(caught.value)
    assert "\n" not in message
    for fragment in ("fineweb_train_000002.bin", *said):
        assert fragment in message


def test_10_every_file_is_checked_before_any_is_used(good_set):
    (good_set / "fineweb_train_000002.bin").write_bytes(b"")
    (good_set / "fineweb_train_000003.bin").write_bytes(header() + body(3))
    with pytest.raises(DataError, match=r"000002\.bin: 0 bytes.*1 more of 3 files"):
        open_shards(str(good_set / "fineweb_train_*.bin"), 50257)


def test_13_a_gap_in_the_numbers_is_refused(good_set):
    (good_set / "fineweb_train_000002.bin").unlink()
    with pytest.raises(DataError, match=r"no shard 2.*interrupted download"):
        open_shards(str(good_set / "fineweb_train_*.bin"), 50257)


def test_13_a_missing_first_shard_is_refused(good_set):
    (good_set / "fineweb_train_000001.bin").unlink()
    with pytest.raises(DataError, match="shard 1 is missing"):
        open_shards(str(good_set / "fineweb_train_*.bin"), 50257)


def test_13_a_repeated_number_is_refused(good_set, make_tokens):
    write_shard(good_set / "fineweb_train_0000003.bin", make_tokens(9))
    with pytest.raises(DataError, match="order by name"):
        open_shards(str(good_set / "fineweb_train_*.bin"), 50257)


def test_13_numbers_of_unequal_width_are_refused_where_order_differs(tmp_path, make_tokens):
    for i in range(1, 11):
        write_shard(tmp_path / f"x_{i}.bin", make_tokens(10, seed=i))
    with pytest.raises(DataError, match="same width"):
        open_shards(str(tmp_path / "x_*.bin"), 50257)


def test_numbers_may_start_at_zero(tmp_path, make_tokens):
    for i in range(3):
        write_shard(tmp_path / f"x_{i:06d}.bin", make_tokens(10, seed=i))
    assert len(open_shards(str(tmp_path / "x_*.bin"), 50257)) == 3


def test_14_validation_data_among_training_data_is_refused_by_content(good_set):
    shutil.copy(good_set / "fineweb_train_000003.bin", good_set / "other_val_000000.bin")
    train = open_shards(str(good_set / "fineweb_train_*.bin"), 50257)
    val = open_shards(str(good_set / "other_val_*.bin"), 50257)
    with pytest.raises(DataError, match=r"train_000003\.bin is training data.*other_val_000000"):
        check_no_overlap(train, val)
    check_no_overlap(train[:2], val)


def test_the_same_content_twice_in_a_set_is_refused(good_set):
    shutil.copy(good_set / "fineweb_train_000001.bin", good_set / "fineweb_train_000003.bin")
    with pytest.raises(DataError, match=r"000003\.bin has the same content as .*000001\.bin"):
        open_shards(str(good_set / "fineweb_train_*.bin"), 50257)


def test_15_no_match_shows_the_folder_and_near_names(good_set, monkeypatch):
    monkeypatch.chdir(good_set)
    with pytest.raises(DataError) as caught:
        open_shards("finewebb_train_*.bin", 50257, key="data.train")
    message = str(caught.value)
    assert message.startswith("data.train=finewebb_train_*.bin matches no file")
    assert str(good_set) in message
    assert "fineweb_train_000001.bin" in message
    with pytest.raises(DataError, match="matches no file"):
        open_shards("no/such/folder/*.bin", 50257)


@pytest.mark.parametrize(
    ("stray", "said"),
    [
        ("fineweb_train_000004.bin.part", "unfinished download"),
        ("fineweb_train_000003 (1).bin", "second copy"),
        ("fineweb_val_000000.bin", "2 sets of shards"),
        ("edu_fineweb_train_000001.bin", "2 sets of shards"),
    ],
)
def test_16_stray_names_in_the_glob_are_refused(good_set, make_tokens, stray, said):
    write_shard(good_set / stray, make_tokens(10, seed=9))
    with pytest.raises(DataError, match=said):
        open_shards(str(good_set / "*fineweb_*"), 50257)


def test_a_single_file_needs_no_number(tmp_path, make_tokens):
    write_shard(tmp_path / "tiny_shakespeare_train.bin", make_tokens(10))
    assert len(open_shards(str(tmp_path / "tiny_shakespeare_train.bin"), 50257)) == 1


def test_17_a_full_disk_leaves_the_old_shard_and_no_rest(tmp_path, monkeypatch, make_tokens):
    path = tmp_path / "x_000001.bin"
    write_shard(path, make_tokens(10))
    before = path.read_bytes()
    nearly_full = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shard_format.shutil, "disk_usage", lambda folder: nearly_full)
    with pytest.raises(StorageError, match=r"1,224 bytes needed, 100 free"):
        write_shard(path, make_tokens(100))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["x_000001.bin"]


def test_17_an_interrupted_write_leaves_no_name(tmp_path, monkeypatch, make_tokens):
    def refuse(path, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StorageError, match="No space left"):
        write_shard(tmp_path / "x_000001.bin", make_tokens(10))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("tokens", [[1, -1], [1, 65_536], [2**31]])
def test_tokens_beyond_uint16_are_not_written(tmp_path, tokens):
    with pytest.raises(DataError, match=f"token {tokens[-1]} at offset {len(tokens) - 1}"):
        write_shard(tmp_path / "x_000001.bin", np.array(tokens, dtype=np.int64))
    with pytest.raises(DataError, match="no tokens"):
        write_shard(tmp_path / "x_000001.bin", np.array([], dtype=np.int64))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("vocab_size", [1, 65_537, 100_277])
def test_19_a_vocabulary_that_uint16_cannot_hold_is_refused(good_set, vocab_size):
    with pytest.raises(ConfigError, match=f"vocab_size={vocab_size}.*uint16"):
        open_shards(str(good_set / "fineweb_train_*.bin"), vocab_size)


@pytest.fixture
def scanned(monkeypatch) -> list[str]:
    """Names of the files that were read in full, in order."""
    names: list[str] = []
    original = shard_scan._scan

    def spy(path):
        names.append(path.name)
        return original(path)

    monkeypatch.setattr(shard_scan, "_scan", spy)
    return names


def test_files_are_read_in_full_once_and_again_after_a_change(good_set, scanned, make_tokens):
    pattern = str(good_set / "fineweb_train_*.bin")
    first = [shard.sha256 for shard in open_shards(pattern, 50257)]
    assert len(scanned) == 3
    assert [shard.sha256 for shard in open_shards(pattern, 50257)] == first
    assert len(scanned) == 3
    write_shard(good_set / "fineweb_train_000002.bin", make_tokens(100, seed=77))
    again = [shard.sha256 for shard in open_shards(pattern, 50257)]
    assert scanned[3:] == ["fineweb_train_000002.bin"]
    assert (again[0], again[2]) == (first[0], first[2])
    assert again[1] != first[1]


def test_what_was_remembered_serves_any_vocabulary(good_set, scanned):
    pattern = str(good_set / "fineweb_train_*.bin")
    open_shards(pattern, 50257)
    with pytest.raises(DataError, match="vocab_size=100"):
        open_shards(pattern, 100)
    assert len(scanned) == 3


def test_a_damaged_memory_is_read_anew(good_set, scanned, own_cache):
    pattern = str(good_set / "fineweb_train_*.bin")
    first = [shard.sha256 for shard in open_shards(pattern, 50257)]
    for file in (own_cache / "shards").iterdir():
        file.write_text('{"size": NaN')
    assert [shard.sha256 for shard in open_shards(pattern, 50257)] == first
    assert len(scanned) == 6


def test_a_cache_that_cannot_be_written_costs_only_time(good_set, monkeypatch):
    blocked = good_set / "a file, no folder"
    blocked.write_text("")
    monkeypatch.setenv("GPT2EXP_CACHE", str(blocked))
    assert len(open_shards(str(good_set / "fineweb_train_*.bin"), 50257)) == 3


def test_a_file_that_changes_while_it_is_read_is_refused(good_set, monkeypatch):
    original = shard_scan._scan

    def grow(path):
        scan = original(path)
        with path.open("ab") as file:
            file.write(b"more")
        return scan

    monkeypatch.setattr(shard_scan, "_scan", grow)
    with pytest.raises(StorageError, match="changed while it was read"):
        open_shards(str(good_set / "fineweb_train_000001.bin"), 50257)
