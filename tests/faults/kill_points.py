"""Kill a run at every point where it touches the disk, resume it, and compare with an unbroken run.

Usage: python kill_points.py FOLDER [EVERY [tracked]]

One process imports everything and forks a child for each point, so a point costs a run of a tiny model
and not the imports. A child counts fsync, rename, mkdir, unlink, rmdir and tensor writes, and sends itself
SIGKILL at the n-th. For EVERY = 1 all points are taken. `tracked` turns spectra on: then a worker that outlives
the kill for a moment, and results of its own, are part of it. Prints one JSON object.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "train"))

from runs import TRACKED, config, results, resume, start, tracked_results

from gpt2exp import rundir
from gpt2exp.train import checkpoint

CALLS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir")


class Bomb:
    """Counts the calls and goes off at the n-th, before the call is made."""

    def __init__(self, at: int) -> None:
        self.left = at

    def tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def arm(self) -> None:
        for name in CALLS:
            setattr(os, name, self.wrap(getattr(os, name)))
        plain = checkpoint.save_file

        def torn(tensors, file):
            plain(tensors, file)
            whole = Path(file).read_bytes()
            Path(file).write_bytes(whole[: len(whole) // 2])
            self.tick()
            Path(file).write_bytes(whole)

        checkpoint.save_file = torn

    def wrap(self, call):
        def counted(*args, **kwargs):
            self.tick()
            return call(*args, **kwargs)

        return counted


def in_child(action) -> int:
    """Exit status of `action` in a forked child; -9 when it was killed."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                action()
            status = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(status)
    _, raw = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(raw)


def go_on(folder: Path, overrides: tuple[str, ...]) -> None:
    """What a user does after a kill: resume, or start where nothing had begun."""
    if rundir.is_run(folder):
        resume(folder)
    else:
        start(folder, *overrides)


def main(root: Path, every: int, overrides: tuple[str, ...] = ()) -> dict[str, object]:
    config()

    def found(folder: Path) -> dict[str, object]:
        status = rundir.read_record(folder)["status"]
        return {"status": status, **results(folder), **(tracked_results(folder) if overrides else {})}

    assert in_child(lambda: start(root / "unbroken", *overrides)) == 0
    expected = found(root / "unbroken")
    points, bad = 0, []
    for at in range(1, 100_000, every):
        folder = root / "run"
        shutil.rmtree(folder, ignore_errors=True)

        def killed(at: int = at, folder: Path = folder) -> None:
            Bomb(at).arm()
            start(folder, *overrides)

        status = in_child(killed)
        if status == 0:
            break
        points += 1
        resumed = in_child(lambda folder=folder: go_on(folder, overrides))
        if status != -signal.SIGKILL or resumed != 0 or found(folder) != expected:
            bad.append({"point": at, "killed": status, "resumed": resumed})
    return {"points": points, "bad": bad}


if __name__ == "__main__":
    step = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    print(json.dumps(main(Path(sys.argv[1]), step, TRACKED if "tracked" in sys.argv else ())))
