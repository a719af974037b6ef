from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2exp.data.synthetic import TRAIN_SEED, VAL_SEED, lcg_states, synthetic_tokens
from gpt2exp.errors import ConfigError

quick = settings(deadline=None, max_examples=60)
STATES = [7806831264735756412, 9396908728118811419, 11960119808228829710, 7062582979898595269]
TRAIN_256 = [58, 59, 60, 61, 62, 63, 64, 177, 178, 94, 95, 96, 97, 98, 41, 42, 43, 44, 45, 2, 3, 4, 5, 6]
VAL_256 = [30, 31, 32, 33, 102, 103, 104, 68, 69, 70, 71, 72]
TRAIN_50257 = [11550, 11551, 11552, 11553, 11554, 11555, 11556, 34837, 34838, 18545, 18546, 18547]


def test_golden_values():
    states = lcg_states(TRAIN_SEED, 4)
    assert states.tolist() == STATES
    assert synthetic_tokens(TRAIN_SEED, 24, 256).tolist() == TRAIN_256
    assert synthetic_tokens(VAL_SEED, 12, 256).tolist() == VAL_256
    assert synthetic_tokens(TRAIN_SEED, 12, 50257).tolist() == TRAIN_50257


@quick
@given(st.integers(0, 2**64 - 1), st.integers(0, 200))
def test_states_are_the_recurrence(seed, count):
    expected, state = [], seed
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        expected.append(state)
    assert lcg_states(seed, count).tolist() == expected


@quick
@given(st.integers(2, 65_536), st.integers(0, 300))
def test_tokens_follow_the_documented_rule(vocab_size, count):
    expected: list[int] = []
    for state in lcg_states(TRAIN_SEED, count).tolist():
        fresh = not expected or state >> 56 < 64
        draw = (state >> 40 & 0xFFFF) * (state >> 24 & 0xFFFF) * vocab_size >> 32
        expected.append(draw if fresh else (expected[-1] + 1) % vocab_size)
    assert synthetic_tokens(TRAIN_SEED, count, vocab_size).tolist() == expected


def test_a_longer_sequence_starts_with_the_shorter():
    long = synthetic_tokens(TRAIN_SEED, 1000, 256)
    np.testing.assert_array_equal(long[:333], synthetic_tokens(TRAIN_SEED, 333, 256))


def test_tokens_can_be_learned_and_are_skewed():
    tokens = synthetic_tokens(TRAIN_SEED, 200_000, 256).astype(np.int64)
    successor = np.mean((tokens[:-1] + 1) % 256 == tokens[1:])
    assert 0.74 < successor < 0.77
    assert np.mean(tokens < 64) > 0.4


@pytest.mark.parametrize("vocab_size", [1, 65_537])
def test_a_vocabulary_beyond_uint16_is_refused(vocab_size):
    with pytest.raises(ConfigError, match=f"vocab_size={vocab_size}"):
        synthetic_tokens(TRAIN_SEED, 10, vocab_size)
