"""Keeps a worker alive while there is something to fit, and gives up on one that only dies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpt2exp.spectral.snapshots import Queue

MAX_DEATHS = 3
"""Deaths in a row, without a result between them, after which a worker is not started again."""
POLL_SECONDS = 0.1
STOP_SECONDS = 10
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "MPLBACKEND": "Agg",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"),
}
"""One thread: the trainer keeps its cores, and fits do not depend on how many there are."""


@dataclass
class Supervisor:
    """Starts, restarts and ends the worker of one run's queue; `trouble` says why it gave up, if it did."""

    queue: Queue
    say: Callable[[str], None]
    trouble: str | None = None
    _deaths: int = 0
    _done_at_death: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def worker(self) -> subprocess.Popen[bytes] | None:
        """The worker, if one is alive."""
        return self._process if self._process is not None and self._process.poll() is None else None

    def ensure(self) -> None:
        """See that a worker is alive if anything is pending, unless there is trouble."""
        pending = self.queue.pending()
        if self.worker is not None or self.trouble is not None or not pending:
            return
        dead = self._process
        self.stop()
        self.trouble = self._damaged(pending) or (self._death(dead.returncode, pending[0]) if dead else None)
        if self.trouble is None:
            self._process = self._start()
        else:
            self.say(f"spectra: {self.trouble}")

    def wait(self, at_most: int, stopped: Callable[[], bool]) -> bool:
        """Wait until at most `at_most` steps are pending; False when stopped first, or when there is trouble."""
        while len(self.queue.pending()) > at_most:
            self.ensure()
            if stopped() or self.trouble is not None:
                return False
            self._notice_damage()
            time.sleep(POLL_SECONDS)
        return True

    def stop(self) -> None:
        """End the worker now; what it was fitting stays pending."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _notice_damage(self) -> None:
        """A worker passes over damaged snapshots: when nothing else is left, waiting would never end."""
        pending = self.queue.pending()
        if pending and all(self.queue.status(step).get("state") == "damaged" for step in pending):
            self.trouble = self._damaged(pending)

    def _damaged(self, pending: list[int]) -> str | None:
        damaged = [step for step in pending if self.queue.status(step).get("state") == "damaged"]
        if not damaged:
            return None
        file = self.queue.snapshot_file(damaged[0])
        return f"{file}: missing or damaged, so step {damaged[0]} has no spectra"

    def _death(self, status: int, step: int) -> str | None:
        """Count a death; what to say when it was one too many."""
        done = len(self.queue.done())
        self._deaths = 1 if done > self._done_at_death else self._deaths + 1
        self._done_at_death = done
        log = self.queue.folder / "worker.log"
        if self._deaths < MAX_DEATHS:
            self.say(f"spectra: the worker died (exit status {status}, see {log}); started again, nothing is lost")
            return None
        return f"the worker died {self._deaths} times on step {step} (last exit status {status}, see {log})"

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.queue.folder / "worker.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "gpt2exp.spectral.worker", str(self.queue.folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,
            )


@contextmanager
def supervised(queue: Queue, say: Callable[[str], None]) -> Iterator[Supervisor]:
    """A supervisor whose worker ends with the block, whatever happens."""
    supervisor = Supervisor(queue, say)
    try:
        yield supervisor
    finally:
        supervisor.stop()
