"""The running interpreter's standard library as a corpus: real text that needs no download.

Its content differs between Python versions and distributions, so a run's identity holds its SHA256 and
published numbers never rest on it.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from gpt2exp.data.documents import Document, read_document
from gpt2exp.errors import DataError

EXCLUDED_FOLDERS = (
    "test",
    "idlelib",
    "lib2to3",
    "tkinter",
    "turtledemo",
    "distutils",
    "ensurepip",
    "encodings",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "config-*",
)
"""Folders left out at any depth: tests, tables, what distributions drop, what is not the library."""
EXCLUDED_FILES = ("_sysconfigdata*",)


def stdlib_documents(root: Path | None = None) -> list[Document]:
    """Every source file in order of its POSIX path relative to `root`, each ending with a newline.

    Raises:
        DataError: no source files (a zipped or stripped standard library).
        StorageError: a file cannot be read.
    """
    folder = root or Path(sysconfig.get_path("stdlib"))
    documents = [_newline_ended(read_document(folder / name, name)) for name in sorted(_source_names(folder))]
    if not documents:
        raise DataError(
            f"data=stdlib: no .py files in {folder} (a Python without its library's source); "
            "use another interpreter, or data=text with your own files"
        )
    return documents


def in_validation(name: str, val_percent: int) -> bool:
    """Whether the SHA256 of a relative path puts the file into the validation split."""
    return int(hashlib.sha256(name.encode("utf-8")).hexdigest(), 16) % 100 < val_percent


def _source_names(root: Path) -> Iterator[str]:
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if not _matches(name, EXCLUDED_FOLDERS)]
        for name in files:
            if name.endswith(".py") and not _matches(name, EXCLUDED_FILES):
                yield (Path(folder) / name).relative_to(root).as_posix()


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _newline_ended(document: Document) -> Document:
    return document if document.data.endswith(b"\n") else replace(document, data=document.data + b"\n")
