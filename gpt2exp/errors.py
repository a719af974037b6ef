"""Errors meant for users: one clear line each, and the exit code that goes with it."""

from __future__ import annotations

from collections.abc import Sequence


class Gpt2ExpError(Exception):
    """Base of every error a user can cause or meet; `exit_code` is the process's exit status."""

    exit_code = 1


class ConfigError(Gpt2ExpError):
    """A configuration that cannot be run; carries every problem found, one line each."""

    exit_code = 2

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class RefusedError(Gpt2ExpError):
    """Refused by the environment, a preflight check or a lease."""

    exit_code = 3


class StoppedError(Gpt2ExpError):
    """Stopped before completion, and resumable."""

    exit_code = 4


class NumericalError(Gpt2ExpError):
    """The numbers went wrong: too many gated updates, or a check out of tolerance."""

    exit_code = 5


class DataError(Gpt2ExpError):
    """A corpus, shard or tokenizer that is missing, broken or too small."""

    exit_code = 6


class StorageError(Gpt2ExpError):
    """The disk refused, or what it holds is damaged."""

    exit_code = 7
