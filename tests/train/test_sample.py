"""Sampling is its own affair: repeatable, bounded by the context, and it leaves training alone."""

from __future__ import annotations

import numpy as np
import pytest

from gpt2exp.config import SampleConfig
from gpt2exp.train.sample import choose, sample


class Echo:
    """A tokenizer of code points."""

    def encode(self, text):
        return np.array([ord(c) for c in text], dtype=np.int64)

    def decode(self, ids):
        return "".join(chr(int(i)) for i in ids)


class Counting:
    """An engine that is sure of the next code point, and remembers how much context it was given."""

    def __init__(self):
        self.lengths = []

    def logits(self, tokens_T):
        self.lengths.append(len(tokens_T))
        logits = np.zeros(256)
        logits[tokens_T[-1] + 1] = 50.0
        return logits


def test_a_sure_model_is_followed_within_its_context():
    engine = Counting()
    text = sample(engine, Echo(), SampleConfig(tokens=5, prompt="ab", temperature=0.5), context_length=4, seed=1)
    assert text == "cdefg" and engine.lengths == [2, 3, 4, 4, 4]


def test_an_empty_prompt_starts_from_token_zero():
    assert sample(Counting(), Echo(), SampleConfig(tokens=2, prompt=""), 8, 1) == "\x01\x02"


def test_choices_come_from_the_top_k_only_and_follow_the_weights():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    rng = np.random.default_rng(0)
    picks = [choose(logits, 1.0, 2, rng) for _ in range(4000)]
    assert set(picks) == {0, 1}
    assert np.mean(np.array(picks) == 0) == pytest.approx(0.5 / 0.8, abs=0.03)


def test_seeds_repeat():
    logits = np.random.default_rng(1).standard_normal(50)
    a, b = (
        [choose(logits, 1.0, 40, rng) for _ in range(20)]
        for rng in (np.random.default_rng(3), np.random.default_rng(3))
    )
    assert a == b
