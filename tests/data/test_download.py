from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from gpt2exp.data import download
from gpt2exp.data.download import fetch
from gpt2exp.errors import DataError, RefusedError, StorageError

CONTENT = np.random.default_rng(5).integers(0, 256, 3_000_000).astype(np.uint8).tobytes()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT; the path says how: /plain /ranges /wrong /truncated /flaky /missing /slow /unsized."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get("Range")))
        getattr(self, f"serve_{self.path.strip('/')}")()

    def reply(self, body, status=200, length=None, headers=()):
        self.send_response(status)
        if length != "none":
            self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def serve_plain(self):
        self.reply(CONTENT)

    def serve_unsized(self):
        self.reply(CONTENT, length="none")

    def serve_wrong(self):
        self.reply(b"<html>please log in</html>")

    def serve_missing(self):
        self.reply(b"gone", status=404)

    def serve_slow(self):
        time.sleep(0.5)
        self.reply(CONTENT)

    def serve_ranges(self):
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if start >= len(CONTENT):
            self.reply(b"", status=416)
        elif wanted:
            span = f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"
            self.reply(CONTENT[start:], status=206, headers=[("Content-Range", span)])
        else:
            self.reply(CONTENT)

    def serve_truncated(self):
        self.reply(CONTENT[:1_200_000], length=len(CONTENT))

    def serve_cut_once(self):
        if len(self.server.requests) == 1:
            self.serve_truncated()
        else:
            self.serve_ranges()

    def serve_flaky(self):
        if len(self.server.requests) < 3:
            self.reply(b"busy", status=503)
        else:
            self.reply(CONTENT)

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Clients that hang up early are part of these tests."""


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "FIRST_WAIT_SECONDS", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    with Server(("127.0.0.1", 0), Handler) as server:
        server.requests = []
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server
        server.shutdown()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "new folder" / "file.txt"


def visible(target) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir() if not path.name.startswith("."))


def leave_part(target, content: bytes) -> None:
    target.parent.mkdir(parents=True)
    target.with_name("file.txt.part").write_bytes(content)


@pytest.mark.parametrize("way", ["plain", "unsized"])
def test_success_leaves_only_the_verified_file(server, target, way):
    assert fetch(f"{server.url}/{way}", target, SHA256, size=len(CONTENT)) == target
    assert target.read_bytes() == CONTENT
    assert visible(target) == ["file.txt"]


def test_a_file_that_is_there_is_verified_and_not_downloaded(server, target):
    fetch(f"{server.url}/plain", target, SHA256.upper())
    fetch(f"{server.url}/plain", target, SHA256)
    assert len(server.requests) == 1
    target.write_bytes(b"mine")
    with pytest.raises(DataError, match=f"expected {SHA256}.*delete it"):
        fetch(f"{server.url}/plain", target, SHA256)
    assert target.read_bytes() == b"mine"


def test_wrong_content_is_named_and_not_kept(server, target):
    with pytest.raises(DataError, match=f"expected {SHA256}") as caught:
        fetch(f"{server.url}/wrong", target, SHA256, label="the corpus")
    assert hashlib.sha256(b"<html>please log in</html>").hexdigest() in str(caught.value)
    assert "the corpus" in str(caught.value)
    assert visible(target) == []
    assert len(server.requests) == 1


def test_wrong_size_is_refused_before_the_download(server, target):
    with pytest.raises(DataError, match=r"announces 3,000,000 bytes, expected 10"):
        fetch(f"{server.url}/plain", target, SHA256, size=10)
    assert visible(target) == []


def test_more_bytes_than_expected_are_refused(server, target):
    with pytest.raises(DataError, match=r"more than the expected 10 bytes"):
        fetch(f"{server.url}/unsized", target, SHA256, size=10)
    assert visible(target) == []


def test_missing_is_not_retried_and_says_what_to_do_by_hand(server, target):
    with pytest.raises(RefusedError) as caught:
        fetch(f"{server.url}/missing", target, SHA256)
    assert len(server.requests) == 1
    for fragment in ("404", f"put it at {target}", SHA256):
        assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unreachable_network_says_what_to_do_by_hand(server, target):
    with pytest.raises(RefusedError, match=f"network reachable.*put it at {target}.*{SHA256}"):
        fetch("http://127.0.0.1:9/file.txt", target, SHA256)
    assert visible(target) == []


def test_a_busy_server_is_asked_again(server, target):
    fetch(f"{server.url}/flaky", target, SHA256)
    assert len(server.requests) == 3
    assert target.read_bytes() == CONTENT


def test_a_cut_connection_goes_on_where_it_stopped(server, target):
    fetch(f"{server.url}/cut_once", target, SHA256)
    assert server.requests == [("/cut_once", None), ("/cut_once", "bytes=1200000-")]
    assert target.read_bytes() == CONTENT


def test_a_connection_that_is_always_cut_is_given_up_but_its_part_kept(server, target):
    with pytest.raises(RefusedError, match=r"ended after 1,200,000 of 3,000,000 bytes"):
        fetch(f"{server.url}/truncated", target, SHA256)
    assert visible(target) == ["file.txt.part"]


def test_an_earlier_part_is_resumed(server, target):
    leave_part(target, CONTENT[:1_000_000])
    fetch(f"{server.url}/ranges", target, SHA256)
    assert server.requests == [("/ranges", "bytes=1000000-")]
    assert target.read_bytes() == CONTENT
    assert visible(target) == ["file.txt"]


def test_a_part_is_thrown_away_when_the_server_ignores_the_range(server, target):
    leave_part(target, CONTENT[:1_000_000])
    fetch(f"{server.url}/plain", target, SHA256)
    assert server.requests == [("/plain", "bytes=1000000-")]
    assert target.read_bytes() == CONTENT


def test_a_damaged_part_costs_one_fresh_start(server, target):
    leave_part(target, bytes(1_000_000))
    fetch(f"{server.url}/ranges", target, SHA256)
    assert server.requests == [("/ranges", "bytes=1000000-"), ("/ranges", None)]
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("size", [None, len(CONTENT)])
def test_a_part_longer_than_the_file_starts_anew(server, target, size):
    leave_part(target, CONTENT + b"tail")
    fetch(f"{server.url}/ranges", target, SHA256, size=size)
    assert target.read_bytes() == CONTENT


def test_a_complete_part_needs_no_network(target):
    leave_part(target, CONTENT)
    fetch("http://127.0.0.1:9/file.txt", target, SHA256)
    assert visible(target) == ["file.txt"]


def test_too_little_space_is_refused_before_the_download(server, target, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(StorageError, match=r"3,000,000 bytes to download, but 1,000 free.*GPT2EXP_CACHE"):
        fetch(f"{server.url}/plain", target, SHA256)
    assert visible(target) == []


def test_a_folder_that_cannot_be_made_is_a_storage_error(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="GPT2EXP_CACHE"):
        fetch(f"{server.url}/plain", tmp_path / "file" / "x", SHA256)


def test_two_processes_download_once(server, target):
    program = (
        "import sys; from pathlib import Path; from gpt2exp.data.download import fetch\n"
        f"fetch('{server.url}/slow', Path(sys.argv[1]), '{SHA256}')\n"
    )
    command = [sys.executable, "-c", program, str(target)]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    assert len(server.requests) == 1
    assert target.read_bytes() == CONTENT
