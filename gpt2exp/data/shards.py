"""Sets of llm.c shards: which files a pattern means, and every check before the first step."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from gpt2exp.data.paths import existing_folder, expand
from gpt2exp.data.shard_format import MAX_VOCAB_SIZE, check_shard, map_tokens, write_shard
from gpt2exp.data.shard_scan import ShardScan, scan_shards
from gpt2exp.data.windows import Tokens, TokenStream
from gpt2exp.errors import ConfigError, DataError

__all__ = ["Shard", "check_no_overlap", "open_shards", "stream_of", "write_shard"]

_NUMBERED = re.compile(r"(?P<set>.+_)(?P<number>\d+)\.bin")


@dataclass(frozen=True, eq=False)
class Shard:
    """One checked shard: memory-mapped uint16 tokens, and the SHA256 of the whole file."""

    path: Path
    tokens: Tokens
    sha256: str


def open_shards(pattern: str, vocab_size: int, key: str = "pattern") -> list[Shard]:
    """Every shard that `pattern` matches, in order, fully checked; `key` names the setting in messages.

    The pattern is a path or glob relative to the current directory; a name that exists literally (brackets
    and all) wins over its reading as a glob. Several files must be numbered without a gap from 0 or 1.

    Raises:
        ConfigError: a vocabulary that uint16 cannot hold.
        DataError: no match, mixed or unfinished names, or a broken file.
        StorageError: a file cannot be read.
    """
    if not 2 <= vocab_size <= MAX_VOCAB_SIZE:
        raise ConfigError(
            f"data.vocab_size={vocab_size}: shards hold uint16 tokens, so it must be between 2 and {MAX_VOCAB_SIZE:,}"
        )
    paths = expand(pattern)
    if not paths:
        raise DataError(_no_match(pattern, key))
    _check_names(paths, pattern, key)
    lengths = _check_all(paths)
    shards = []
    for path, num_tokens, scan in zip(paths, lengths, scan_shards(paths), strict=True):
        shard = Shard(path, map_tokens(path, num_tokens), scan.sha256)
        _check_content(shard, scan, vocab_size)
        shards.append(shard)
    _check_distinct(shards)
    return shards


def stream_of(shards: Sequence[Shard]) -> TokenStream:
    """The shards' tokens as one split."""
    return TokenStream(tuple(shard.tokens for shard in shards), tuple(str(shard.path) for shard in shards))


def check_no_overlap(train: Sequence[Shard], val: Sequence[Shard]) -> None:
    """Refuse validation data among the training data, by content.

    Raises:
        DataError: two files hold the same bytes.
    """
    validation = {shard.sha256: shard.path for shard in val}
    for shard in train:
        if shard.sha256 in validation:
            raise DataError(
                f"{shard.path} is training data and has the content of validation file "
                f"{validation[shard.sha256]}: does the training glob also match the validation shard? Narrow "
                "data.train, e.g. to '*_train_*.bin'"
            )


def _no_match(pattern: str, key: str) -> str:
    folder = existing_folder(Path(pattern).expanduser())
    names = sorted(entry.name for entry in folder.iterdir())
    near = difflib.get_close_matches(Path(pattern).name, names, n=3, cutoff=0.4)
    seen = f"nearest names in {folder}: {', '.join(near)}" if near else f"nothing similar in {folder}"
    where = f"current directory {Path.cwd()}; {seen}"
    return f"{key}={pattern} matches no file ({where}): correct the path or the glob"


def _check_names(paths: Sequence[Path], pattern: str, key: str) -> None:
    matched = f"{key}={pattern} matches"
    for path in paths:
        if path.suffix != ".bin":
            raise DataError(
                f"{matched} {path}, whose name does not end in .bin: an unfinished download or another kind "
                "of file; narrow the glob or finish the download"
            )
    if len(paths) == 1:
        return
    names = [_NUMBERED.fullmatch(path.name) for path in paths]
    for path, name in zip(paths, names, strict=True):
        if name is None:
            raise DataError(
                f"{matched} {path}, which is not named <set>_<number>.bin like llm.c's shards: a browser's "
                "second copy or a foreign file? Remove it or narrow the glob"
            )
    sets = sorted({str(path.parent / name["set"]) for path, name in zip(paths, names, strict=True) if name})
    if len(sets) > 1:
        raise DataError(f"{matched} {len(sets)} sets of shards ({', '.join(sets)}*): narrow the glob to one of them")
    _check_numbers([int(name["number"]) for name in names if name], matched)


def _check_numbers(numbers: Sequence[int], matched: str) -> None:
    if list(numbers) != sorted(numbers):
        raise DataError(
            f"{matched} shards whose order by name ({numbers[0]}, {numbers[1]}, ...) is not their order by "
            "number: give all numbers the same width, e.g. 000001"
        )
    if numbers[0] > 1:
        raise DataError(
            f"{matched} shards {numbers[0]} to {numbers[-1]}, but shard 1 is missing: an interrupted "
            "download; fetch the missing files, so that the order of the tokens is the published one"
        )
    for before, after in pairwise(numbers):
        if after != before + 1:
            what = f"shard {before} twice" if after == before else f"no shard {before + 1}"
            raise DataError(
                f"{matched} {len(numbers)} shards from {numbers[0]} to {numbers[-1]}, but {what}: "
                "an interrupted download or a second copy; complete the set first"
            )


def _check_all(paths: Sequence[Path]) -> list[int]:
    """Token counts of all files; of several broken ones the first is described and the rest are counted."""
    lengths, problems = [], []
    for path in paths:
        try:
            lengths.append(check_shard(path))
        except DataError as error:
            problems.append(str(error))
    if problems:
        others = f" ({len(problems) - 1} more of {len(paths)} files are broken)" if len(problems) > 1 else ""
        raise DataError(problems[0] + others)
    return lengths


def _check_content(shard: Shard, scan: ShardScan, vocab_size: int) -> None:
    if scan.max_token >= vocab_size:
        offset = int(np.argmax(shard.tokens >= vocab_size))
        raise DataError(
            f"{shard.path}: token {int(shard.tokens[offset])} at offset {offset:,}, but "
            f"data.vocab_size={vocab_size}: another tokenizer's shard or a damaged file; set data.vocab_size "
            "to its tokenizer's or fetch it again"
        )
    if scan.zero_block is not None:
        raise DataError(
            f"{shard.path}: only zeros for at least 1 MiB from byte {scan.zero_block:,}, expected tokens: a "
            "download that reserved its space and was interrupted; fetch it again and compare its SHA256"
        )


def _check_distinct(shards: Sequence[Shard]) -> None:
    seen: dict[str, Path] = {}
    for shard in shards:
        if shard.sha256 in seen:
            raise DataError(
                f"{shard.path} has the same content as {seen[shard.sha256]}: a mistaken copy; fetch it again"
            )
        seen[shard.sha256] = shard.path
