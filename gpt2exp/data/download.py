"""Download one file whose SHA256 is known: resumable, verified before it gets its name, never in halves."""

from __future__ import annotations

import hashlib
import http.client
import logging
import shutil
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpt2exp import atomic
from gpt2exp.errors import DataError, RefusedError, StorageError

ATTEMPTS = 4
FIRST_WAIT_SECONDS = 0.5
TIMEOUT_SECONDS = 30.0
BLOCK_BYTES = 1 << 20
_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
logger = logging.getLogger(__name__)


class _Transient(Exception):
    """A failure worth another attempt: the connection, not the content."""


@dataclass(frozen=True)
class _Download:
    url: str
    path: Path
    sha256: str
    size: int | None
    label: str

    @property
    def part(self) -> Path:
        return self.path.with_name(self.path.name + ".part")

    @property
    def by_hand(self) -> str:
        return f"or fetch {self.url} elsewhere and put it at {self.path} (SHA256 {self.sha256})"


def fetch(url: str, path: Path, sha256: str, size: int | None = None, label: str | None = None) -> Path:
    """Make `path` hold the content with this SHA256, downloading it unless it is there; returns `path`.

    Bytes stream into `<path>.part`, are hashed and synced, and only then renamed. An interrupted download
    goes on where it stopped: the part is hashed again from byte 0, and thrown away if the server ignores the
    range. A lock beside the target keeps a second process waiting instead of downloading too. Only failures
    of the connection are retried.

    Raises:
        RefusedError: the network or the server refuses; says where to put the file by hand.
        DataError: the content is not the expected one.
        StorageError: the disk is full or refuses.
    """
    download = _Download(url, path, sha256.lower(), size, label or path.name)
    with _storage_errors(download):
        if path.exists():
            return _verified(download)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(download):
            return _verified(download) if path.exists() else _download_verified(download)


@contextmanager
def _locked(download: _Download) -> Iterator[None]:
    """Hold the lock beside the target; the kernel frees it when its holder dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(download.path.with_name(f".{download.path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.info("waiting for another process that downloads %s", download.label)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _verified(download: _Download) -> Path:
    found = atomic.sha256_file(download.path)
    if found != download.sha256:
        raise DataError(
            f"{download.label}: {download.path} has SHA256 {found}, expected {download.sha256}: a damaged "
            "file or another version; delete it and run the command again to download it"
        )
    return download.path


def _download_verified(download: _Download) -> Path:
    """Fill the part, verify it, publish it. A resumed part of wrong content gets one fresh start."""
    logger.info("downloading %s from %s", download.label, download.url)
    resumed = _part_size(download) > 0
    found = _fill_part(download)
    if found != download.sha256 and resumed:
        download.part.unlink()
        found = _fill_part(download)
    if found != download.sha256:
        download.part.unlink()
        raise DataError(
            f"{download.label}: {download.url} gave content with SHA256 {found}, expected {download.sha256}: "
            "the file changed at its source or a proxy answered instead; nothing was kept; "
            f"{download.by_hand}"
        )
    atomic.fsync_file(download.part)
    download.part.replace(download.path)
    atomic.fsync_folder(download.path.parent)
    return download.path


def _fill_part(download: _Download) -> str:
    """Download until the part is complete, with retries; returns its SHA256."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

    attempts = Retrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=FIRST_WAIT_SECONDS, max=10),
        retry=retry_if_exception_type(_Transient),
        reraise=True,
    )
    try:
        return attempts(_attempt, download)
    except _Transient as error:
        raise RefusedError(
            f"cannot download {download.label} from {download.url}: {error} ({ATTEMPTS} attempts); is the "
            f"network reachable? Run the command again to go on from what is there, {download.by_hand}"
        ) from error


def _attempt(download: _Download) -> str:
    """One connection: append to the part what the server sends, and return the SHA256 of the whole."""
    digest, have = _hash_part(download)
    if digest.hexdigest() == download.sha256:
        return digest.hexdigest()
    with _network_errors(download), _open(download, have) as response:
        resuming = response.status == 206 and _range_start(response) == have
        if have and not resuming:
            digest, have = hashlib.sha256(), 0
        total = _expected_total(download, response, have)
        _check_space(download, total, have)
        with download.part.open("ab" if have else "wb") as file:
            while block := response.read(BLOCK_BYTES):
                file.write(block)
                digest.update(block)
                have += len(block)
                _check_not_longer(download, have)
    if total is not None and have < total:
        raise _Transient(f"the connection ended after {have:,} of {total:,} bytes")
    return digest.hexdigest()


def _open(download: _Download, have: int) -> http.client.HTTPResponse:
    request = urllib.request.Request(download.url, headers={"User-Agent": "gpt2exp"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        # The part is as long as the file or longer: without its size known, only a fresh start can tell.
        error.close()
        download.part.unlink()
        return _open(download, 0)
    assert isinstance(response, http.client.HTTPResponse)
    return response


def _part_size(download: _Download) -> int:
    return download.part.stat().st_size if download.part.exists() else 0


def _hash_part(download: _Download) -> tuple[hashlib._Hash, int]:
    """Digest and length of what an earlier attempt left; a part longer than the file is thrown away."""
    digest = hashlib.sha256()
    have = _part_size(download)
    if download.size is not None and have > download.size:
        download.part.unlink()
        have = 0
    if have:
        with download.part.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    return digest, have


def _range_start(response: http.client.HTTPResponse) -> int | None:
    """First byte of a 206 answer, from `Content-Range: bytes START-END/TOTAL`."""
    start = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(start) if start.isdigit() else None


def _expected_total(download: _Download, response: http.client.HTTPResponse, have: int) -> int | None:
    length = response.headers.get("Content-Length", "")
    announced = have + int(length) if length.isdigit() else None
    if download.size is not None and announced is not None and announced != download.size:
        raise DataError(
            f"{download.label}: {download.url} announces {announced:,} bytes, expected {download.size:,}: "
            f"the file changed at its source or a proxy answered instead; {download.by_hand}"
        )
    return announced if announced is not None else download.size


def _check_not_longer(download: _Download, have: int) -> None:
    if download.size is not None and have > download.size:
        download.part.unlink()
        raise DataError(
            f"{download.label}: {download.url} sends more than the expected {download.size:,} bytes: the "
            f"file changed at its source; nothing was kept; {download.by_hand}"
        )


def _check_space(download: _Download, total: int | None, have: int) -> None:
    free = shutil.disk_usage(download.path.parent).free
    if total is not None and total - have > free:
        raise StorageError(
            f"{download.label}: {total - have:,} bytes to download, but {free:,} free in "
            f"{download.path.parent}: free some space or set GPT2EXP_CACHE to a folder on a larger disk"
        )


@contextmanager
def _network_errors(download: _Download) -> Iterator[None]:
    """Sort the network's exceptions: worth another attempt, or final."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _TRANSIENT_STATUS:
            raise _Transient(f"the server answered {error.code} {error.reason}") from error
        raise RefusedError(
            f"cannot download {download.label}: {download.url} answered {error.code} {error.reason}: moved, "
            f"removed or not public; {download.by_hand}"
        ) from error
    except urllib.error.URLError as error:
        raise _Transient(str(error.reason)) from error
    except (http.client.HTTPException, ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError) as error:
        raise _Transient(str(error) or type(error).__name__) from error


@contextmanager
def _storage_errors(download: _Download) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {error.filename or download.path}: {error.strerror or error}; free some space or "
            "set GPT2EXP_CACHE to a folder that can be written"
        ) from error
