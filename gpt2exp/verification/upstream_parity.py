"""Upstream's script and our loop on the same shards, seed and threads: the same digits or it is an error."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import gpt2exp
from gpt2exp.atomic import write_bytes
from gpt2exp.data.gpt2_vocabulary import write_tiktoken_cache
from gpt2exp.data.shards import write_shard
from gpt2exp.data.synthetic import TRAIN_SEED, VAL_SEED, synthetic_tokens
from gpt2exp.errors import DataError, NumericalError, RefusedError, StorageError
from gpt2exp.models.upstream import UPSTREAM, SourceFile, locate
from gpt2exp.verification.child import Child
from gpt2exp.verification.digits import Comparison, our_digits, upstream_digits

VOCAB_SIZE = 50_257
TRAIN_SHARD_TOKENS = (1_700, 1_500)
"""Ten steps of two micro-windows of 128 tokens cross from the first shard to the second and drop a tail."""
VAL_TOKENS = 4_096
"""Upstream reads 20 batches of 128 tokens: it never wraps."""
UPSTREAM_FLAGS = (
    "--input_bin train_*.bin --input_val_bin val_*.bin --model d12 --batch_size 2 --sequence_length 64 "
    "--total_batch_size 256 --num_iterations 10 --val_loss_every 5 --overfit_single_batch 0 "
    "--write_tensors 0 --device cpu --learning_rate 6e-4 --warmup_iters 3 "
    "--learning_rate_decay_frac 0.0 --weight_decay 0.1"
)
OUR_OVERRIDES = (
    "preset=upstream_parity data.train=train_*.bin data.val=val_*.bin model.path=train_gpt2.py hydra.run.dir=run"
)
OTHER_THREAD_SETTINGS = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RANK")
"""Kept from both: MKL's would override the common thread count, and a rank makes upstream want CUDA."""


@dataclass(frozen=True)
class Workplace:
    """A folder with everything both read; each is started in it."""

    folder: Path
    threads: int
    vocabulary: str

    @property
    def environment(self) -> dict[str, str]:
        """Of both processes. Waiting threads sleep instead of spinning, which changes no bit."""
        kept = {name: value for name, value in os.environ.items() if name not in OTHER_THREAD_SETTINGS}
        return {
            "OMP_WAIT_POLICY": "PASSIVE",
            **kept,
            "OMP_NUM_THREADS": str(self.threads),
            "TIKTOKEN_CACHE_DIR": str(self.folder / "tiktoken"),
            "PYTHONPATH": os.pathsep.join(filter(None, [_package_root(), os.environ.get("PYTHONPATH")])),
        }

    @property
    def upstream(self) -> Child:
        """`python train_gpt2.py ...`."""
        command = [sys.executable, UPSTREAM.file, *UPSTREAM_FLAGS.split()]
        log = self.folder / "upstream.log"
        return Child(f"upstream's {UPSTREAM.file}", command, self.folder, self.environment, log)

    @property
    def ours(self) -> Child:
        """`python -m gpt2exp ...`."""
        overrides = [*OUR_OVERRIDES.split(), f"hardware.threads={self.threads}"]
        command = [sys.executable, "-m", "gpt2exp", *overrides]
        return Child("gpt2exp", command, self.folder, self.environment, self.folder / "gpt2exp.log")

    def head(self) -> Iterator[str]:
        """What is compared with what, and on what."""
        yield f"upstream  {UPSTREAM.repository} {UPSTREAM.commit}, {UPSTREAM.file}, SHA256 {UPSTREAM.sha256}"
        yield f"          python {UPSTREAM.file} {UPSTREAM_FLAGS}"
        yield f"gpt2exp   {gpt2exp.__version__}"
        yield f"          python -m gpt2exp {OUR_OVERRIDES} hardware.threads={self.threads}"
        yield f"both      {sys.executable} ({platform.python_version()}), torch {version('torch')}"
        yield f"          {self.threads} threads (OMP_NUM_THREADS={self.threads}), {platform.platform()}"
        yield f"          GPT-2 vocabulary from {self.vocabulary}"


def verify_upstream(keep: Path | None) -> None:
    """Run both, print both columns of digits.

    Args:
        keep: an unused folder for shards, outputs and our run directory; None throws them away.

    Raises:
        RefusedError: upstream's file or the vocabulary is missing, `keep` is in use, or a process failed.
        NumericalError: a digit differs.
    """
    source = locate(None)
    with _folder(keep) as folder:
        workplace = prepare(folder, source, thread_count(os.environ))
        print("\n".join(workplace.head()), flush=True)
        upstream_output = _timed(workplace.upstream)
        _timed(workplace.ours)
        conclude(Comparison(upstream_digits(upstream_output), our_digits(folder / "run")))


def prepare(folder: Path, source: SourceFile, threads: int) -> Workplace:
    """Write upstream's file, the shards and the vocabulary into `folder`.

    Raises:
        RefusedError: GPT-2's vocabulary, which upstream's script loads, is nowhere.
        StorageError: the folder cannot be written.
    """
    try:
        vocabulary = write_tiktoken_cache(folder / "tiktoken")
    except DataError as error:
        raise RefusedError(
            "verify upstream: upstream's script loads GPT-2's vocabulary, which was not found; "
            f"run `pip install 'gpt2exp[bpe]'` ({error})"
        ) from error
    write_bytes(folder / UPSTREAM.file, source.data)
    write_shards(folder)
    return Workplace(folder, threads, vocabulary)


def write_shards(folder: Path) -> None:
    """The same tokens on every machine: two training shards and a validation shard."""
    train = synthetic_tokens(TRAIN_SEED, sum(TRAIN_SHARD_TOKENS), VOCAB_SIZE)
    first = TRAIN_SHARD_TOKENS[0]
    write_shard(folder / "train_000001.bin", train[:first])
    write_shard(folder / "train_000002.bin", train[first:])
    write_shard(folder / "val_000000.bin", synthetic_tokens(VAL_SEED, VAL_TOKENS, VOCAB_SIZE))


def conclude(comparison: Comparison) -> None:
    """Print the table and the verdict.

    Raises:
        NumericalError: naming the first difference.
    """
    print("\n".join(comparison.table()))
    different, total = comparison.differences, len(comparison.keys)
    if not comparison.upstream or different:
        first = different[0] if different else "upstream printed no step"
        raise NumericalError(f"verify upstream: {len(different)} of {total} numbers differ; first {first}")
    print(f"all {total} numbers are equal, digit for digit")


def thread_count(environment: Mapping[str, str]) -> int:
    """OMP_NUM_THREADS where it is a number, else the cores this process may use."""
    given = environment.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with TemporaryDirectory(prefix="gpt2exp_verify_") as name:
            yield Path(name)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        used = any(keep.iterdir())
    except OSError as error:
        raise StorageError(f"--keep {keep}: {error.strerror or error}; choose another folder") from error
    if used:
        raise RefusedError(f"--keep {keep}: not empty; choose a new folder")
    yield keep.resolve()


def _timed(child: Child) -> str:
    print(f"running {child.name} ...", end="", flush=True)
    started = time.monotonic()
    try:
        output = child.run()
    finally:
        print(f" {time.monotonic() - started:.0f} s", flush=True)
    return output


def _package_root() -> str:
    """Where this very package is imported from, so that the child process imports the same one."""
    return str(Path(gpt2exp.__file__).resolve().parent.parent)
