"""Synthetic tokens from a 64-bit linear congruential generator: integers only, the same on every machine.

The generator is x -> (A*x + C) mod 2^64 with Knuth's MMIX constants; only its high bits are used. The
tokens form a Markov chain that a model can learn: three times in four a token is followed by its successor
id (modulo the vocabulary), otherwise by a fresh draw that favours small ids as text favours frequent words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpt2exp.data.windows import Tokens
from gpt2exp.errors import ConfigError

MULTIPLIER = 6364136223846793005
INCREMENT = 1442695040888963407
TRAIN_SEED = 1
VAL_SEED = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def lcg_states(seed: int, count: int) -> NDArray[np.uint64]:
    """The `count` states that follow `seed`, by doubling: block [n, 2n) is an affine map of block [0, n)."""
    states = np.empty(count, dtype=np.uint64)
    if count == 0:
        return states
    states[0] = (MULTIPLIER * seed + INCREMENT) & _MASK
    multiplier, increment, done = MULTIPLIER, INCREMENT, 1
    while done < count:
        more = min(done, count - done)
        np.multiply(states[:more], np.uint64(multiplier), out=states[done : done + more])
        states[done : done + more] += np.uint64(increment)
        increment = (multiplier * increment + increment) & _MASK
        multiplier = multiplier * multiplier & _MASK
        done += more
    return states


def synthetic_tokens(seed: int, count: int, vocab_size: int) -> Tokens:
    """`count` uint16 tokens below `vocab_size`; a longer sequence starts with the shorter one.

    Bits 56-63 of state k decide whether token k is fresh (below 64 of 256; the first always is); bits 40-55
    and 24-39 are two uniform draws u, v, and u * v * vocab_size / 2^32 is the fresh id.

    Raises:
        ConfigError: `vocab_size` does not fit uint16.
    """
    if not 2 <= vocab_size <= 65_536:
        raise ConfigError(f"data.vocab_size={vocab_size} must be between 2 and 65,536 (tokens are uint16)")
    if count == 0:
        return np.empty(0, dtype=np.uint16)
    states = lcg_states(seed, count)
    position = np.arange(count, dtype=np.int64)
    is_fresh = (states >> np.uint64(56)) < 64
    is_fresh[0] = True
    fresh_position = np.maximum.accumulate(np.where(is_fresh, position, 0))
    ids = _skewed_ids(states, vocab_size)[fresh_position] + (position - fresh_position)
    return (ids % vocab_size).astype(np.uint16)


def _skewed_ids(states: NDArray[np.uint64], vocab_size: int) -> NDArray[np.int64]:
    low16 = np.uint64(0xFFFF)
    u, v = (states >> np.uint64(40)) & low16, (states >> np.uint64(24)) & low16
    return (u * v * np.uint64(vocab_size) >> np.uint64(32)).astype(np.int64)
