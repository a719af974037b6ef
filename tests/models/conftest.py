from __future__ import annotations

from collections.abc import Callable

import pytest

from gpt2exp.config import ModelConfig, ModelSource
from gpt2exp.models.upstream import SourceFile, find

ModelFactory = Callable[..., ModelConfig]


@pytest.fixture(scope="session")
def model_config() -> ModelFactory:
    """Makes a ModelConfig: a small reference GPT unless told otherwise."""

    def make(**chosen) -> ModelConfig:
        small = {"n_layer": 2, "n_head": 4, "n_embd": 64, "block_size": 64, "vocab_size": 256}
        return ModelConfig(**{"label": "test", "source": ModelSource.reference, **small, **chosen})

    return make


@pytest.fixture(scope="session")
def gpt2(model_config) -> ModelConfig:
    """The 124M shape with upstream's source."""
    return model_config(
        label="gpt2-124M",
        source=ModelSource.llmc,
        n_layer=12,
        n_head=12,
        n_embd=768,
        block_size=1024,
        vocab_size=50257,
    )


@pytest.fixture(scope="session")
def upstream_source() -> SourceFile:
    """The pinned file from the cache; the test is skipped where it is absent."""
    source = find(None)
    if source is None:
        pytest.skip("upstream's train_gpt2.py is not in the cache: `gpt2exp doctor` tells where it belongs")
    return source
