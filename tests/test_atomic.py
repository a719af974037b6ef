"""A reader sees the old file or the new one, whatever happens in between."""

from __future__ import annotations

import hashlib

import pytest

from gpt2exp import atomic


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    file = tmp_path / "a.json"
    atomic.write_json(file, {"x": 1})
    with pytest.raises(RuntimeError), atomic.replacing(file) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert atomic.read_json(file) == {"x": 1} and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")]])
def test_what_json_has_no_word_for_is_refused_in_both_directions(tmp_path, value):
    with pytest.raises(ValueError):
        atomic.write_json(tmp_path / "a.json", value)
    assert not list(tmp_path.iterdir())
    (tmp_path / "b.json").write_text('{"x": NaN}')
    with pytest.raises(ValueError, match="NaN"):
        atomic.read_json(tmp_path / "b.json")


def test_a_planted_link_is_replaced_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    atomic.write_text(tmp_path / "link", "new")
    assert victim.read_text() == "precious" and not (tmp_path / "link").is_symlink()


def test_hashes_and_newlines_are_the_bytes_own(tmp_path):
    atomic.write_text(tmp_path / "a", "x\r\ny\n")
    assert (tmp_path / "a").read_bytes() == b"x\r\ny\n"
    seen: list[int] = []
    assert atomic.sha256_file(tmp_path / "a", seen.append) == hashlib.sha256(b"x\r\ny\n").hexdigest()
    assert sum(seen) == 5
