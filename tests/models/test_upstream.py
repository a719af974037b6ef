from __future__ import annotations

import hashlib
import http.server
import inspect
import subprocess
import sys
import threading
import traceback

import pytest

from gpt2exp.errors import ConfigError, RefusedError
from gpt2exp.models import upstream
from gpt2exp.models.upstream import UPSTREAM, Pin, SourceFile, cached_path, find, load, locate

NOWHERE = "http://127.0.0.1:9/train_gpt2.py"
BODY = b'''"""A stand-in for the model file."""
import sys
from dataclasses import dataclass


@dataclass
class GPTConfig:
    n_layer: int = 12
    label: "str" = "stand-in"


REGISTERED = __name__ in sys.modules


def fail():
    raise ValueError("the hashed bytes ran")


if __name__ == "__main__":
    raise SystemExit("ran as a script")
'''


def pin_of(data: bytes, url: str = NOWHERE) -> Pin:
    return Pin("someone/model", "0" * 40, "train_gpt2.py", hashlib.sha256(data).hexdigest(), len(data), url)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GPT2EXP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fresh_module():
    """Loads a file and forgets the module afterwards."""
    before = set(sys.modules)
    yield load
    for name in set(sys.modules) - before:
        if name.startswith("gpt2exp_upstream_"):
            del sys.modules[name]


@pytest.fixture
def server():
    """A web server on this machine; `content` maps paths to bytes, `requests` lists what was asked."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            data = content.get(self.path)
            self.send_response(404 if data is None else 200)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, *arguments):
            pass

    content, requests = {}, []
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    running.content, running.requests = content, requests
    running.url = f"http://127.0.0.1:{running.server_port}/train_gpt2.py"
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def put_into_cache(data: bytes, pin: Pin) -> None:
    cached_path(pin).parent.mkdir(parents=True)
    cached_path(pin).write_bytes(data)


def refusal(path: str | None, pin: Pin) -> str:
    with pytest.raises(RefusedError) as caught:
        locate(path, pin)
    assert caught.value.exit_code == 3
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_given_path_is_read_and_verified(tmp_path):
    (tmp_path / "mine.py").write_bytes(BODY)
    source = locate(str(tmp_path / "mine.py"), pin_of(BODY))
    assert source.data == BODY
    assert source.sha256 == hashlib.sha256(BODY).hexdigest()
    assert source.path == tmp_path / "mine.py"


def test_a_given_path_is_taken_before_the_cache(tmp_path):
    pin = pin_of(BODY)
    put_into_cache(BODY, pin)
    (tmp_path / "mine.py").write_bytes(BODY)
    assert locate(str(tmp_path / "mine.py"), pin).path == tmp_path / "mine.py"
    assert locate(None, pin).path == cached_path(pin)


def test_a_home_relative_path_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "mine.py").write_bytes(BODY)
    assert locate("~/mine.py", pin_of(BODY)).data == BODY


def test_the_cache_place_is_named_after_the_hash(cache):
    pin = pin_of(BODY)
    assert cached_path(pin) == cache / "upstream" / pin.sha256 / "train_gpt2.py"


def test_find_never_asks_the_network(server):
    server.content["/train_gpt2.py"] = BODY
    assert find(None, pin_of(BODY, server.url)) is None
    assert server.requests == []


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "empty"),
        (BODY.replace(b"\n", b"\r\n"), "CRLF"),
        (b"<!DOCTYPE html>\n<html><body>sign in</body></html>", "HTML"),
        (b"\n\n<html lang='en'>", "HTML"),
        (BODY[:100], f"100 of {len(BODY)} bytes"),
        (BODY.replace(b"= 12", b"= 13"), "edited"),
        (BODY + b"# more\n", "edited"),
    ],
)
def test_a_file_with_other_bytes_is_refused_with_both_hashes_and_the_cause(tmp_path, data, cause):
    path, pin = tmp_path / "wrong.py", pin_of(BODY)
    path.write_bytes(data)
    text = refusal(str(path), pin)
    assert cause in text
    assert hashlib.sha256(data).hexdigest() in text
    assert pin.sha256 in text
    assert str(path) in text


@pytest.mark.parametrize("name", ["missing.py", "."])
def test_an_unreadable_path_is_refused_and_named(tmp_path, name):
    assert str(tmp_path / name) in refusal(str(tmp_path / name), pin_of(BODY))


def test_a_damaged_cache_is_refused_not_replaced(server):
    pin = pin_of(BODY, server.url)
    server.content["/train_gpt2.py"] = BODY
    put_into_cache(BODY[:-1], pin)
    assert "remove it" in refusal(None, pin)
    assert server.requests == []


def test_the_file_is_downloaded_once_into_the_cache(server):
    pin = pin_of(BODY, server.url)
    server.content["/train_gpt2.py"] = BODY
    assert locate(None, pin) == SourceFile(cached_path(pin), BODY)
    assert locate(None, pin).data == BODY
    assert server.requests == ["/train_gpt2.py"]


def test_a_download_of_other_content_is_refused_and_not_kept(server):
    pin = pin_of(BODY, server.url)
    server.content["/train_gpt2.py"] = BODY.replace(b"= 12", b"= 13")
    assert pin.sha256 in refusal(None, pin)
    assert not cached_path(pin).exists()


def test_a_failed_download_says_where_to_put_the_file_and_what_needs_none(server):
    pin = pin_of(BODY, server.url)
    text = refusal(None, pin)
    assert str(cached_path(pin)) in text
    assert "model.source=reference" in text


def test_the_hashed_bytes_run_even_if_the_file_is_swapped_meanwhile(tmp_path, fresh_module):
    path = tmp_path / "mine.py"
    path.write_bytes(BODY)
    source = locate(str(path), pin_of(BODY))
    path.write_bytes(b"raise SystemExit('the swapped file ran')\n")
    module = fresh_module(source)
    assert module.GPTConfig().n_layer == 12
    assert "n_layer: int = 12" in inspect.getsource(module.GPTConfig)
    with pytest.raises(ValueError, match="hashed bytes") as caught:
        module.fail()
    assert 'raise ValueError("the hashed bytes ran")' in "".join(traceback.format_exception(caught.value))


def test_the_module_is_registered_before_it_runs_and_not_as_main(tmp_path, fresh_module):
    module = fresh_module(SourceFile(tmp_path / "mine.py", BODY))
    assert module.REGISTERED
    assert sys.modules[module.__name__] is module
    assert module.__name__ != "__main__"


def test_our_future_imports_do_not_change_the_files_meaning(tmp_path, fresh_module):
    module = fresh_module(SourceFile(tmp_path / "mine.py", BODY))
    assert module.GPTConfig.__annotations__ == {"n_layer": int, "label": "str"}


def test_the_same_bytes_load_once(tmp_path, fresh_module):
    first = fresh_module(SourceFile(tmp_path / "mine.py", BODY))
    assert fresh_module(SourceFile(tmp_path / "other.py", BODY)) is first


def test_a_file_that_cannot_be_imported_is_refused_and_leaves_no_module(tmp_path, fresh_module):
    source = SourceFile(tmp_path / "mine.py", b"import a_module_that_nobody_has\n")
    with pytest.raises(RefusedError, match=r"a_module_that_nobody_has.*model\.source=reference"):
        fresh_module(source)
    assert f"gpt2exp_upstream_{source.sha256}" not in sys.modules


def test_any_other_failure_leaves_no_module_either(tmp_path, fresh_module):
    source = SourceFile(tmp_path / "mine.py", b"1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        fresh_module(source)
    assert f"gpt2exp_upstream_{source.sha256}" not in sys.modules


def test_a_model_without_biases_is_refused_before_the_file_runs(tmp_path, model_config):
    source = SourceFile(tmp_path / "mine.py", b"raise SystemExit('it ran')\n")
    with pytest.raises(ConfigError, match=r"model\.bias=false.*model\.source=reference"):
        upstream.build(model_config(bias=False), source)


def test_the_pinned_url_names_the_pinned_commit():
    assert UPSTREAM.url == f"https://raw.githubusercontent.com/{UPSTREAM.repository}/{UPSTREAM.commit}/{UPSTREAM.file}"


def test_finding_and_counting_need_no_torch():
    program = "import sys, gpt2exp.models.upstream, gpt2exp.models.inventory; print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "False"


@pytest.mark.upstream
def test_the_pinned_file_loads_with_its_source_visible(upstream_source):
    assert (upstream_source.sha256, len(upstream_source.data)) == (UPSTREAM.sha256, UPSTREAM.size)
    module = load(upstream_source)
    assert module.GPTConfig().n_embd == 768
    assert inspect.getsource(module.GPT).startswith("class GPT(nn.Module):")
