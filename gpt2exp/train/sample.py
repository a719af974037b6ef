"""Text from the trained model. It draws from a generator of its own: training state never moves."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gpt2exp.config import SampleConfig
from gpt2exp.engines.base import Array, Engine


class Codec(Protocol):
    """The two ends of a tokenizer."""

    def encode(self, text: str) -> Array:
        """Token ids of a text."""

    def decode(self, ids: Array) -> str:
        """The text of token ids; what is no valid text is replaced."""


def sample(engine: Engine, codec: Codec, cfg: SampleConfig, context_length: int, seed: int) -> str:
    """Continue `cfg.prompt` by `cfg.tokens` tokens, top-k at a temperature."""
    rng = np.random.Generator(np.random.Philox(seed))
    ids = [int(token) for token in codec.encode(cfg.prompt)] or [0]
    prompt = len(ids)
    for _ in range(cfg.tokens):
        logits_V = engine.logits(np.array(ids[-context_length:], dtype=np.int64))
        ids.append(choose(logits_V, cfg.temperature, cfg.top_k, rng))
    return codec.decode(np.array(ids[prompt:], dtype=np.int64))


def choose(logits_V: Array, temperature: float, top_k: int, rng: np.random.Generator) -> int:
    """One token from the `top_k` largest logits, softmax at `temperature`."""
    candidates = np.argsort(-logits_V, kind="stable")[:top_k]
    scaled = logits_V[candidates] / temperature
    weights = np.exp(scaled - scaled.max())
    return int(rng.choice(candidates, p=weights / weights.sum()))
