"""Validation: which steps are due, and the row an evaluation leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpt2exp.data.windows import TokenStream, Window, evaluation_windows
from gpt2exp.engines.base import Engine, EvalRecord


@dataclass(frozen=True)
class Validation:
    """The fixed tokens that every evaluation of a run reads, from the start of the split."""

    stream: TokenStream
    tokens: int
    context_length: int
    rows: int

    def windows(self) -> Iterator[Window]:
        """The tokens in windows of at most `rows` rows."""
        return evaluation_windows(self.stream, self.tokens, self.context_length, self.rows)

    def unigram_entropy(self) -> float:
        """Nats a token of the targets' own unigram distribution.

        No model that ignores context can score below this on these tokens, whatever it was trained on.
        """
        counts = np.zeros(0, dtype=np.int64)
        for window in self.windows():
            new = np.bincount(window.targets_NT.ravel(), minlength=len(counts))
            new[: len(counts)] += counts
            counts = new
        shares = counts[counts > 0] / counts.sum()
        return float(-(shares * np.log(shares)).sum())


def evaluation_row(step: int, tokens: int, record: EvalRecord) -> dict[str, Any]:
    """A row of `evaluations.jsonl`; `tokens` is what training had consumed."""
    return {
        "step": step,
        "tokens": tokens,
        "val_loss": finite(record.val_loss),
        "token_error": record.token_error,
        "target_tokens": record.target_tokens,
        "batch_mean_loss": finite(record.batch_mean_loss),
    }


def evaluate(engine: Engine, validation: Validation, step: int, tokens: int) -> dict[str, Any]:
    """Evaluate now."""
    return evaluation_row(step, tokens, engine.evaluate(validation.windows()))


def finite(value: float) -> float | None:
    """JSON has no NaN: what is not finite is written as null."""
    return value if np.isfinite(value) else None
