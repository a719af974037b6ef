"""What a preflight leaves: which run was tried out, on what, with which results; and whether it still counts."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import gpt2exp
from gpt2exp import atomic
from gpt2exp.assembly import VERSIONED, installed
from gpt2exp.config import cache_folder
from gpt2exp.errors import StorageError
from gpt2exp.identity import Identity, differing
from gpt2exp.rundir import now

SCHEMA_VERSION = 1
VALID = timedelta(hours=24)
CLOCK_SKEW = timedelta(minutes=5)
"""A stamp may seem to come from the future by this much."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
JSONDict = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """One check: what was found, and how long it took."""

    name: str
    passed: bool
    found: str
    seconds: float


def stamp_file(run_digest: str) -> Path:
    """Where the stamp of a run is kept: one for each run digest, the newest."""
    return cache_folder() / "preflight" / f"{run_digest[:16]}.json"


def content(identity: Identity, results: Sequence[Result], measured: Mapping[str, Any]) -> JSONDict:
    """A new stamp, made now."""
    return {
        "schema": SCHEMA_VERSION,
        "made": now(),
        "digests": identity.digests,
        **circumstances(identity),
        "measured": dict(measured),
        "checks": [asdict(result) for result in results],
    }


def circumstances(identity: Identity) -> JSONDict:
    """What must be the same when the run starts."""
    return {
        "run": identity.digests["run"],
        "execution": identity.execution,
        "machine": {"host": platform.node(), "boot": boot_id()},
        "versions": versions(),
    }


def versions() -> dict[str, str | None]:
    """Of everything that computes."""
    return {
        "gpt2exp": gpt2exp.__version__,
        "python": platform.python_version(),
        **{name: installed(name) for name in (*VERSIONED, "torch_xla", "libtpu")},
    }


def boot_id() -> str | None:
    """The kernel's name for the current boot; None where it gives none."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None


def publish(stamp: JSONDict) -> Path:
    """Write a stamp over an older one of the same run.

    Raises:
        StorageError: the cache folder cannot be written.
    """
    file = stamp_file(stamp["run"])
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_json(file, stamp)
    except OSError as error:
        raise StorageError(f"{file}: {error.strerror or error}; set GPT2EXP_CACHE to a folder with room") from error
    return file


def withdraw(run_digest: str) -> None:
    """Remove an older stamp: while a new preflight has not passed, the run counts as not tried out.

    Raises:
        StorageError: it cannot be removed.
    """
    file = stamp_file(run_digest)
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{file}: {error.strerror or error}; remove it by hand") from error


def problems(identity: Identity, at: datetime | None = None) -> list[str]:
    """Why the stamp of this run does not count now, one text a reason; empty where it does."""
    file = stamp_file(identity.digests["run"])
    if not file.is_file():
        return ["no preflight of this run was made"]
    try:
        stamp = atomic.read_json(file)
        return _age(stamp, at or datetime.now(UTC)) + _differences(stamp, circumstances(identity))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [f"{file} is damaged"]


def record(run_digest: str) -> dict[str, str]:
    """Path and SHA256 of a run's stamp, for its `run.json`."""
    file = stamp_file(run_digest)
    return {"path": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def _age(stamp: JSONDict, at: datetime) -> list[str]:
    if stamp["schema"] != SCHEMA_VERSION:
        return [f"it was made by another version of gpt2exp (schema {stamp['schema']})"]
    age = at - datetime.fromisoformat(stamp["made"])
    if age > VALID:
        return [f"it is {age.total_seconds() / 3600:.0f} hours old (valid for {VALID.total_seconds() / 3600:.0f})"]
    if age < -CLOCK_SKEW:
        return [f"it was made at {stamp['made']}, which is still to come: the clock was changed"]
    return []


def _differences(stamp: JSONDict, today: JSONDict) -> list[str]:
    """JSON's form of both sides: what was written is compared with what would be."""
    today = json.loads(json.dumps(today))
    then = {key: stamp[key] for key in today}
    return [f"{key} was {old}, is {new}" for key, old, new in differing(then, today)]
