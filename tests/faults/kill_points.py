"""Kill a run at every point where it touches the disk, resume it, and compare with an unbroken run.

Usage: python kill_points.py FOLDER [EVERY]

One process imports everything and forks a child for each point, so a point costs a run of a tiny model
and not the imports. A child counts fsync, rename, mkdir, unlink, rmdir and tensor writes, and sends itself
SIGKILL at the n-th. For EVERY = 1 all points are taken. Prints one JSON object.
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

from runs import config, results, resume, start

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


def go_on(folder: Path) -> None:
    """What a user does after a kill: resume, or start where nothing had begun."""
    if rundir.is_run(folder):
        resume(folder)
    else:
        start(folder)


def main(root: Path, every: int) -> dict[str, object]:
    config()
    assert in_child(lambda: start(root / "unbroken")) == 0
    expected = results(root / "unbroken")
    points, bad = 0, []
    for at in range(1, 100_000, every):
        folder = root / "run"
        shutil.rmtree(folder, ignore_errors=True)

        def killed(at: int = at, folder: Path = folder) -> None:
            Bomb(at).arm()
            start(folder)

        status = in_child(killed)
        if status == 0:
            break
        points += 1
        resumed = in_child(lambda folder=folder: go_on(folder))
        if status != -signal.SIGKILL or resumed != 0 or results(folder) != expected:
            bad.append({"point": at, "killed": status, "resumed": resumed})
    return {"points": points, "bad": bad}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)))
