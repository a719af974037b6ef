"""`hardware.preflight`: what must have been tried out before a run may start."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpt2exp.assembly import yaml_of
from gpt2exp.config import Config, Preflight
from gpt2exp.errors import ConfigError, DataError, Gpt2ExpError, RefusedError, StorageError
from gpt2exp.identity import Identity
from gpt2exp.preflight import stamp
from gpt2exp.verification.child import ending

FAILURES: dict[int, type[Gpt2ExpError]] = {
    error.exit_code: error for error in (ConfigError, RefusedError, DataError, StorageError)
}


PREFIX = "gpt2exp: "
"""Of the lines that say what went wrong."""


def prepare(cfg: Config) -> None:
    """Under `auto`, make a preflight in a process of its own, unless one that matches is there.

    To be called before this process opens the device: an accelerator serves one process at a time.

    Raises:
        Gpt2ExpError: the preflight failed; with its own line and exit status.
    """
    if cfg.hardware.preflight is not Preflight.auto:
        return
    with tempfile.TemporaryDirectory(prefix="gpt2exp-preflight-") as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(yaml_of(cfg), encoding="utf-8")
        run_child(file)


def run_child(config: Path) -> None:
    """`gpt2exp preflight` on a configuration file; its lines go to this process's stdout.

    Raises:
        Gpt2ExpError: it failed.
    """
    sys.stdout.flush()
    command = [sys.executable, "-m", "gpt2exp", "preflight", "--unless-fresh", "--config", str(config)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return
    lines = [line.removeprefix(PREFIX) for line in done.stderr.splitlines() if line.startswith(PREFIX)]
    said = "; ".join(lines) or f"its process {ending(done.returncode)}"
    raise FAILURES.get(done.returncode, RefusedError)(said if said.startswith("preflight") else f"preflight: {said}")


def accepted(cfg: Config, identity: Identity, overrides: Sequence[str]) -> dict[str, str] | None:
    """Path and SHA256 of the stamp that lets this run start; None where none is asked for.

    Raises:
        RefusedError: there is none that matches; with the command that makes it.
    """
    if cfg.hardware.preflight is Preflight.off:
        return None
    problems = stamp.problems(identity)
    if problems:
        raise RefusedError(
            f"hardware.preflight={cfg.hardware.preflight.name}: {'; '.join(problems)}; "
            f"run {shlex.join(['gpt2exp', 'preflight', *overrides])}"
        )
    return stamp.record(identity.digests["run"])
