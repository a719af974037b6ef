"""Which tokens make up each step, in closed form, so that resuming needs only the step number.

Shape legend: N rows, T tokens of context, A micro-windows of one step, S tokens of one micro-window.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2exp.config import Order
from gpt2exp.errors import ConfigError, DataError

Tokens = NDArray[np.uint16]
Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Window:
    """Inputs and targets of N rows of T tokens: int64, C-contiguous, fresh for every window.

    The two may be views of one buffer, one token apart (as upstream's batches are): do not write into them.
    """

    inputs_NT: Ids
    targets_NT: Ids


@dataclass(frozen=True, eq=False)
class TokenStream:
    """One split of a corpus: 1-D uint16 parts, memory-mapped or in memory, read as one long sequence.

    `names` are the parts' file names for messages; it may be empty.
    """

    parts: tuple[Tokens, ...]
    names: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens in all parts together."""
        return self.offsets[-1]

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens in each part."""
        return tuple(len(part) for part in self.parts)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Position of each part's first token in the sequence, and the total at the end."""
        return tuple(accumulate(self.lengths, initial=0))

    def read(self, start: int, count: int) -> Ids:
        """Tokens [start, start + count) as a fresh int64 array of shape (count,), across part borders."""
        out = np.empty(count, dtype=np.int64)
        self.read_into(start, out)
        return out

    def read_into(self, start: int, out: Ids) -> None:
        """Fill the 1-D `out` with the tokens from `start` on."""
        assert start >= 0 and start + len(out) <= self.num_tokens, "read beyond the token stream"
        part = bisect_right(self.offsets, start) - 1
        position, filled = start - self.offsets[part], 0
        while filled < len(out):
            piece = self.parts[part][position : position + len(out) - filled]
            out[filled : filled + len(piece)] = piece
            filled, part, position = filled + len(piece), part + 1, 0


@dataclass(frozen=True, eq=False)
class TrainingWindows:
    """The training split cut into steps of `tokens_per_step` targets, in rows of `context_length`.

    `exact_sequential`: step u holds tokens [u*W, (u+1)*W], both ends included (W = tokens_per_step), across
    part borders; after `horizon` steps it starts over. `upstream_python`: the walk of llm.c's
    `DistributedDataLoader` as one process sees it, with G = `window_tokens` = B*T*ranks (null:
    tokens_per_step): a part of n tokens yields floor((n-1)/G) micro-windows, its tail is dropped, the next
    part follows, modulo their number; step u holds the W/G micro-windows from number u*W/G on. (With several
    ranks upstream's rank r leaves a part one micro-window early where fewer than r*B*T tokens remain; see
    llm.c issue 321. That skew depends on B and the ranks and is not reproduced.)

    Raises:
        ConfigError: sizes that do not divide, or `window_tokens` with an order that does not use it.
        DataError: a split or a part that is too small.
    """

    stream: TokenStream
    order: Order
    tokens_per_step: int
    context_length: int
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        self._check_sizes()
        if self.order is Order.upstream_python:
            self._check_parts()
        if self.horizon < 1:
            raise DataError(
                f"the training split has {self.stream.num_tokens:,} tokens, but one step needs "
                f"{self.tokens_per_step + 1:,} (schedule.tokens_per_step + 1): lower "
                "schedule.tokens_per_step or give more data"
            )

    @property
    def span(self) -> int:
        """Targets of one micro-window: G, or the whole step for `exact_sequential`."""
        return self.tokens_per_step if self.window_tokens is None else self.window_tokens

    @property
    def horizon(self) -> int:
        """Number of steps before a token repeats as a target."""
        return self._first_window[-1] // self._windows_per_step

    @cached_property
    def order_digest(self) -> str:
        """SHA256 of everything that decides the order; equal means equal tokens, given an equal corpus."""
        text = json.dumps(self._order_record(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def window(self, u: int) -> Window:
        """Inputs and targets of step `u` (from 0), each of shape (tokens_per_step / context_length, T)."""
        assert u >= 0, "steps count from 0"
        tokens_AS = np.empty((self._windows_per_step, self.span + 1), dtype=np.int64)
        for start, row in zip(self._starts(u), tokens_AS, strict=True):
            self.stream.read_into(start, row)
        return as_window(tokens_AS, self.context_length)

    @property
    def _windows_per_step(self) -> int:
        return self.tokens_per_step // self.span

    @cached_property
    def _first_window(self) -> tuple[int, ...]:
        """Number of micro-windows before each part (for `exact_sequential` all parts are one), and in all."""
        sequential = self.order is Order.exact_sequential
        lengths = (self.stream.num_tokens,) if sequential else self.stream.lengths
        return tuple(accumulate((max(length - 1, 0) // self.span for length in lengths), initial=0))

    def _starts(self, u: int) -> list[int]:
        """Position in the stream of each micro-window of step `u`; wraps after the last micro-window."""
        first = u * self._windows_per_step
        return [self._start(number) for number in range(first, first + self._windows_per_step)]

    def _start(self, number: int) -> int:
        number %= self._first_window[-1]
        part = bisect_right(self._first_window, number) - 1
        return self.stream.offsets[part] + (number - self._first_window[part]) * self.span

    def _order_record(self) -> dict[str, Any]:
        return {
            "order": self.order.name,
            "tokens_per_step": self.tokens_per_step,
            "context_length": self.context_length,
            "window_tokens": self.span,
            "part_lengths": list(self.stream.lengths),
        }

    def _check_sizes(self) -> None:
        step, context, span = self.tokens_per_step, self.context_length, self.span
        problems = []
        if step < 1 or context < 1 or step % context:
            problems.append(
                f"schedule.tokens_per_step={step} is not a positive multiple of schedule.context_length={context}"
            )
        elif self.order is Order.exact_sequential and span != step:
            problems.append(
                f"data.window_tokens={span} has no meaning for data.order=exact_sequential, whose window is "
                "the whole step: set data.window_tokens=null or data.order=upstream_python"
            )
        elif span < 1 or step % span or span % context:
            problems.append(
                f"data.window_tokens={span} must divide schedule.tokens_per_step={step} and be a multiple of "
                f"schedule.context_length={context}"
            )
        if problems:
            raise ConfigError(problems)

    def _check_parts(self) -> None:
        names = self.stream.names or tuple(f"part {i}" for i in range(len(self.stream.parts)))
        for name, length in zip(names, self.stream.lengths, strict=True):
            if length < self.span + 1:
                fits = (length - 1) // self.context_length * self.context_length
                raise DataError(
                    f"{name} has {length:,} tokens, but data.order=upstream_python needs "
                    f"{self.span + 1:,} in every shard (data.window_tokens + 1): lower data.window_tokens "
                    f"to at most {fits:,}, drop this shard, or use data.order=exact_sequential"
                )


def as_window(tokens_AS: Ids, context_length: int) -> Window:
    """Cut A runs of S = rows * T + 1 tokens into rows: targets are the inputs moved by one token.

    A single run is cut without copying: that makes it 1.5 to 2 times as fast as upstream's loader.
    """
    inputs_NT = np.ascontiguousarray(tokens_AS[:, :-1]).reshape(-1, context_length)
    targets_NT = np.ascontiguousarray(tokens_AS[:, 1:]).reshape(-1, context_length)
    return Window(inputs_NT=inputs_NT, targets_NT=targets_NT)


def evaluation_windows(stream: TokenStream, tokens: int, context_length: int, rows: int) -> Iterator[Window]:
    """The first `tokens` targets of a split from offset 0, at most `rows` rows a window (fewer at the end).

    Reads tokens + 1 tokens in all, as llm.c's validation does.

    Raises:
        ConfigError: `tokens` is not a positive multiple of `context_length`.
        DataError: the split is too small.
    """
    assert rows > 0, "a window has at least one row"
    if tokens < 1 or tokens % context_length:
        raise ConfigError(
            f"evaluation.tokens={tokens} is not a positive multiple of schedule.context_length={context_length}"
        )
    if tokens + 1 > stream.num_tokens:
        fits = (stream.num_tokens - 1) // context_length * context_length
        raise DataError(
            f"evaluation.tokens={tokens:,} needs {tokens + 1:,} tokens, but the validation split has "
            f"{stream.num_tokens:,}: set evaluation.tokens to at most {max(fits, 0)} or give more data"
        )
    return _evaluation_windows(stream, tokens, context_length, rows)


def _evaluation_windows(stream: TokenStream, tokens: int, context_length: int, rows: int) -> Iterator[Window]:
    for start in range(0, tokens, rows * context_length):
        count = min(rows * context_length, tokens - start)
        yield as_window(stream.read(start, count + 1)[None], context_length)
