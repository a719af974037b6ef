from __future__ import annotations

import ast
import glob
import hashlib
import os
from collections.abc import Callable

import numpy as np
import pytest

from gpt2exp.config import cache_folder

UPSTREAM_SHA256 = "757d0cea0d48cbc4c7d7d70371f955d49cdf3a7cfb4c87701a720c2fe0905c34"
UPSTREAM_LOADER_NAMES = {"DistributedDataLoader", "_peek_data_shard", "_load_data_shard", "print0"}
REAL_CACHE = cache_folder()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Every test has an empty cache folder, and no vocabulary but the installed package's."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("GPT2EXP_CACHE", str(folder))
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    return folder


@pytest.fixture(scope="session")
def upstream_loader() -> type:
    """The DistributedDataLoader class of the pinned train_gpt2.py, its own code."""
    path = REAL_CACHE / "upstream" / UPSTREAM_SHA256 / "train_gpt2.py"
    if not path.is_file():
        pytest.skip("no train_gpt2.py in the cache folder's upstream/")
    source = path.read_bytes()
    assert hashlib.sha256(source).hexdigest() == UPSTREAM_SHA256
    return run_definitions(source, UPSTREAM_LOADER_NAMES)["DistributedDataLoader"]


def run_definitions(source: bytes, names: set[str]) -> dict:
    """The named top-level definitions of a module, run as they stand but without its slow imports."""
    import torch

    tree = ast.parse(source)
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    namespace = {"np": np, "torch": torch, "glob": glob, "os": os}
    exec(compile(tree, "train_gpt2.py", "exec", dont_inherit=True), namespace)
    return namespace


@pytest.fixture
def make_tokens() -> Callable[..., np.ndarray]:
    """Random tokens that differ for every seed."""

    def make(count: int, seed: int = 0, vocab_size: int = 50257) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, vocab_size, count).astype(np.uint16)

    return make
