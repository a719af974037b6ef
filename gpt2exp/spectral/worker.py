"""The process that fits snapshots: one thread, no GPU, killed and restarted at will.

Usage: python -m gpt2exp.spectral.worker FOLDER

It lives as long as its standard input: when that ends, because its parent closed it or died, it leaves at once.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from gpt2exp import atomic
from gpt2exp.errors import StorageError
from gpt2exp.spectral import backends
from gpt2exp.spectral.records import Array, Spectrum
from gpt2exp.spectral.slices import Slice
from gpt2exp.spectral.snapshots import FORMAT, Header, Queue, read_header, read_slice

POLL_SECONDS = 0.2
LOCK_SECONDS = 60
NICENESS = 19
"""The trainer comes first where both want the same core."""
DIAGNOSTIC_SEED_OFFSET = 1_000_003
"""Randomisation draws from seed + offset + step: never a stream that a run could use."""


def main(folder: Path) -> int:
    """Fit what is pending, and what will be, until the parent is gone."""
    os.nice(NICENESS)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        with FileLock(folder / ".lock", timeout=LOCK_SECONDS):
            while True:
                fit_pending(Queue(folder))
                time.sleep(POLL_SECONDS)
    except Timeout:
        print(f"{folder}: another worker holds the queue", file=sys.stderr)
        return 1


def fit_pending(queue: Queue) -> None:
    """Fit what is pending now, in order of step."""
    for step in queue.pending():
        if queue.status(step).get("state", "damaged") != "damaged":
            fit_snapshot(queue, step)


def fit_snapshot(queue: Queue, step: int) -> None:
    """Fit one pending step, publish the result, read it back, and only then let the weights go."""
    file, status = queue.snapshot_file(step), queue.status(step)
    if not queue.result_file(step).exists():
        attempts = int(status["attempts"]) + 1
        queue.update_status(step, state="fitting", attempts=attempts, pid=os.getpid())
        if not file.is_file() or atomic.sha256_file(file) != status["sha256"]:
            queue.update_status(step, state="damaged")
            print(f"{file}: missing or damaged: SHA256 is not {status['sha256'][:12]}...", file=sys.stderr)
            return
        publish(queue, read_header(file), status["sha256"], attempts)
    queue.eigenvalues(step)
    queue.retire(step, bool(status["keep_weights"]))


def publish(queue: Queue, header: Header, sha256: str, attempts: int) -> None:
    """Fit every slice of a snapshot; eigenvalues first, the result last."""
    started, cpu = time.perf_counter(), time.process_time()
    file = queue.snapshot_file(header.step)
    spectra = {part: _measure(header, part, read_slice(file, part)) for part in header.slices}
    eigenvalues = _npz({part.name: spectrum.eigenvalues for part, spectrum in spectra.items()})
    atomic.write_bytes(queue.eigenvalues_file(header.step), eigenvalues)
    result = {
        "format": FORMAT,
        "step": header.step,
        "tokens": header.tokens,
        "snapshot_sha256": sha256,
        "eigenvalues_sha256": atomic.sha256_file(queue.eigenvalues_file(header.step)),
        "backend": header.backend,
        "backend_label": backends.label(header.backend),
        "versions": backends.versions(header.backend),
        "randomized": header.randomize,
        "seconds": round(time.perf_counter() - started, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "attempts": attempts,
        "spectra": [
            {"matrix": part.name, "kind": part.kind, "block": part.block, **spectrum.row()}
            for part, spectrum in spectra.items()
        ],
    }
    atomic.write_json(queue.result_file(header.step), result)


def _measure(header: Header, part: Slice, matrix: Array) -> Spectrum:
    seed = (header.seed + DIAGNOSTIC_SEED_OFFSET + header.step) % 2**32
    return backends.measure(header.backend, matrix, part.name, randomize=header.randomize, seed=seed)


def _npz(arrays: dict[str, Array]) -> bytes:
    buffer = io.BytesIO()
    named: dict[str, Any] = arrays
    np.savez(buffer, **named)
    return buffer.getvalue()


def _leave_with_parent() -> None:
    """Everything is published atomically, so leaving in the middle of a fit loses only that fit."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except StorageError as error:
        sys.exit(str(error))
