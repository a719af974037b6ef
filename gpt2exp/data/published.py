"""Published sets of shards: their files by name, length and, where it was published, SHA256.

fineweb10B.csv: kjj0/fineweb10B-gpt2 on the Hugging Face hub, llm.c's tokenization of a 10-billion-token sample of
FineWeb (ODC-By 1.0). 103 training files of 10,255,324,043 tokens in all: printed in KellerJordan/modded-nanogpt's
logs (records/track_1_short/2024-11-14_QuantizedFP4). Hashes as the hub shows them; not all were at hand.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt2exp.config import PublishedShardData, cache_folder
from gpt2exp.data.shards import Shard, open_shards
from gpt2exp.errors import DataError


@dataclass(frozen=True)
class PublishedShard:
    """One file of a published set; `sha256` is empty where it is not known."""

    file: str
    tokens: int
    sha256: str

    @property
    def bytes(self) -> int:
        """Size of the file: a header of 256 int32, then uint16 tokens."""
        return 1024 + 2 * self.tokens


def published_shards(name: str) -> tuple[PublishedShard, ...]:
    """Every file of the set `name`, validation first."""
    with (Path(__file__).parent / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(PublishedShard(row["file"], int(row["tokens"]), row["sha256"]) for row in csv.DictReader(file))


def folder_of(data: PublishedShardData) -> Path:
    """Where the files are looked for."""
    return Path(data.folder).expanduser() if data.folder is not None else cache_folder() / data.kind


def open_published(data: PublishedShardData) -> tuple[list[Shard], list[Shard]]:
    """Training and validation shards, every file compared with what was published.

    Raises:
        DataError: files are missing, of another length, or of other content.
    """
    wanted = published_shards(data.kind)
    val, train = list(wanted[:1]), list(wanted[1:])
    train = train[: data.train_shards] if data.train_shards is not None else train
    folder = folder_of(data)
    _check_present(data, folder, [*val, *train])
    return _opened(data, folder, train), _opened(data, folder, val)


def _check_present(data: PublishedShardData, folder: Path, wanted: Sequence[PublishedShard]) -> None:
    missing = [shard for shard in wanted if not (folder / shard.file).is_file()]
    if missing:
        raise DataError(
            f"data={data.kind}: {len(missing)} of {len(wanted)} files are not in {folder} (first: {missing[0].file}; "
            f"{sum(shard.bytes for shard in missing) / 1e9:.2f} GB in all); put the files of {data.source} there, or "
            "name their folder with data.folder=..."
        )


def _opened(data: PublishedShardData, folder: Path, wanted: Sequence[PublishedShard]) -> list[Shard]:
    shards = [open_shards(str(folder / shard.file), data.vocab_size, "data.folder")[0] for shard in wanted]
    for shard, published in zip(shards, wanted, strict=True):
        if len(shard.tokens) != published.tokens:
            raise DataError(
                f"{shard.path}: {len(shard.tokens):,} tokens, published with {published.tokens:,}: another set's file, "
                f"or a damaged one; fetch it again from {data.source}"
            )
        if published.sha256 and shard.sha256 != published.sha256:
            raise DataError(
                f"{shard.path}: SHA256 {shard.sha256[:12]}..., published with {published.sha256[:12]}...: damaged, or "
                f"another file of that name; fetch it again from {data.source}"
            )
    return shards
