"""A program in a process of its own, its output kept in a file."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt2exp.errors import RefusedError

SHOWN_LINES = 8


@dataclass(frozen=True)
class Child:
    """What to run: `name` is what messages call it."""

    name: str
    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    log: Path

    def run(self) -> str:
        """Run to the end; everything it printed (stdout and stderr in one).

        Raises:
            RefusedError: it did not end with status 0; with its last lines.
        """
        with self.log.open("wb") as log:
            status = subprocess.run(
                list(self.command),
                cwd=self.folder,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        output = self.log.read_text(encoding="utf-8", errors="replace")
        if status != 0:
            raise RefusedError(f"{self.name} {ending(status)}; its last lines:\n{last_lines(output)}")
        return output


def ending(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name
    cause = ": out of memory?" if name == "SIGKILL" else ""
    return f"was killed by {name}{cause}"


def last_lines(output: str) -> str:
    """The last lines that are not empty."""
    lines = [line for line in output.splitlines() if line.strip()]
    return "\n".join(lines[-SHOWN_LINES:]) or "(it printed nothing)"
