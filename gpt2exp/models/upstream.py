"""The byte-identical upstream file: found, hashed, and the very bytes that were hashed executed.

`locate`, `find` and `cached_path` need no torch; `load` and `build` run the file, which imports it.
"""

from __future__ import annotations

import hashlib
import linecache
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from gpt2exp.config import ModelConfig, cache_folder
from gpt2exp.errors import ConfigError, DataError, RefusedError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Pin:
    """One file of one commit, and the SHA256 of its bytes."""

    repository: str
    commit: str
    file: str
    sha256: str
    size: int
    url: str


_COMMIT = "7ecd8906afe6ed7a2b2cdb731c042f26d525b820"
UPSTREAM = Pin(
    repository="karpathy/llm.c",
    commit=_COMMIT,
    file="train_gpt2.py",
    sha256="757d0cea0d48cbc4c7d7d70371f955d49cdf3a7cfb4c87701a720c2fe0905c34",
    size=41_860,
    url=f"https://raw.githubusercontent.com/karpathy/llm.c/{_COMMIT}/train_gpt2.py",
)


@dataclass(frozen=True)
class SourceFile:
    """A model file as it was read, once: what is hashed is what is executed."""

    path: Path
    data: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        """SHA256 of `data`, in hex."""
        return _sha256(self.data)


def cached_path(pin: Pin = UPSTREAM) -> Path:
    """Where the file belongs when `model.path` does not name another place."""
    return cache_folder() / "upstream" / pin.sha256 / pin.file


def find(path: str | None, pin: Pin = UPSTREAM) -> SourceFile | None:
    """The model file on this machine: at `path` where given, else in the cache; never the network.

    Returns:
        The verified file, or None where no path is given and the cache has none.

    Raises:
        RefusedError: `path` cannot be read, or the bytes found are not the pinned ones.
    """
    if path is not None:
        given = Path(path).expanduser()
        return _verified(given, pin, f"download it from {pin.url}, or leave model.path out")
    cached = cached_path(pin)
    return _verified(cached, pin, "remove it and run again to download it") if cached.is_file() else None


def locate(path: str | None, pin: Pin = UPSTREAM) -> SourceFile:
    """The model file: at `path`, else in the cache, else downloaded into the cache.

    Raises:
        RefusedError: the bytes found are not the pinned ones, or the file cannot be had.
    """
    return find(path, pin) or _download(pin)


def load(source: SourceFile) -> ModuleType:
    """Execute the file's bytes as a module; a second call with the same bytes returns the same module.

    The module is registered before it runs (dataclasses look themselves up in `sys.modules`) and
    `linecache` holds its text, so tracebacks and `inspect.getsource` show what ran, whatever lies at
    the path by now.

    Raises:
        RefusedError: the file cannot be imported with this Python or torch.
    """
    name = f"gpt2exp_upstream_{source.sha256}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(source.path)
    sys.modules[name] = module
    try:
        _execute(source, module)
    except ImportError as error:
        del sys.modules[name]
        raise RefusedError(
            f"{source.path} cannot be imported here: {error}; install what it needs or use model.source=reference"
        ) from error
    except BaseException:
        del sys.modules[name]
        raise
    return module


def build(model: ModelConfig, source: SourceFile) -> nn.Module:
    """Upstream's GPT in the shape of `model`, initialised by its own constructor (seed 42).

    Raises:
        ConfigError: `model.bias` is false, which upstream's file does not know.
        RefusedError: as `load`.
    """
    if not model.bias:
        raise ConfigError("model.bias=false: llm.c's GPT always has biases; use model.source=reference")
    module = load(source)
    config = module.GPTConfig(
        block_size=model.block_size,
        vocab_size=model.vocab_size,
        n_layer=model.n_layer,
        n_head=model.n_head,
        n_embd=model.n_embd,
    )
    gpt: nn.Module = module.GPT(config)
    return gpt


def _execute(source: SourceFile, module: ModuleType) -> None:
    filename = str(source.path)
    lines = source.data.decode("utf-8").splitlines(keepends=True)
    # No modification time: linecache then never looks at the file on disk again.
    linecache.cache[filename] = (len(source.data), None, lines, filename)
    # dont_inherit: this module's `from __future__` must not leak into upstream's code.
    exec(compile(source.data, filename, "exec", dont_inherit=True), module.__dict__)


def _download(pin: Pin) -> SourceFile:
    from gpt2exp.data.download import fetch

    target = cached_path(pin)
    try:
        fetch(pin.url, target, pin.sha256, pin.size, label=f"{pin.repository} {pin.file}")
    except (RefusedError, DataError) as error:
        raise RefusedError(f"{error}; or use model.source=reference, which needs no file") from error
    return _verified(target, pin, "remove it and run again to download it")


def _verified(path: Path, pin: Pin, remedy: str) -> SourceFile:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RefusedError(f"model file {path}: {error.strerror or error}; {remedy}") from error
    source = SourceFile(path, data)
    if source.sha256 != pin.sha256:
        raise RefusedError(
            f"model file {path}: SHA256 found {source.sha256}, expected {pin.sha256} "
            f"({pin.repository} {pin.file}): {_cause(data, pin)}; {remedy}"
        )
    return source


def _cause(data: bytes, pin: Pin) -> str:
    """Why `data` is not the pinned file, as far as its bytes tell."""
    if not data:
        return "the file is empty"
    if _sha256(data.replace(b"\r\n", b"\n")) == pin.sha256:
        return "its line endings were converted to CRLF (an editor, or git's core.autocrlf)"
    if data.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html")):
        return "it is an HTML page, not the raw file"
    if len(data) < pin.size:
        return f"it has {len(data):,} of {pin.size:,} bytes: cut short, or another version"
    return "it was edited, or is another version"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
