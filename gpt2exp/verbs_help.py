"""Arguments of verbs: their module's documentation is their help."""

from __future__ import annotations

from collections.abc import Sequence

from gpt2exp.errors import ConfigError


class HelpShown(SystemExit):
    """Raised after printing a verb's help."""


def positional(arguments: Sequence[str], doc: str | None, at_least: int, at_most: int | None = None) -> list[str]:
    """The arguments, after answering --help and counting them.

    Raises:
        ConfigError: too few or too many, with the verb's usage line.
        HelpShown: `--help` was given.
    """
    assert doc is not None
    if any(argument in ("-h", "--help") for argument in arguments):
        print(f"gpt2exp {doc.strip()}")
        raise HelpShown(0)
    usage = next(line.strip() for line in doc.splitlines() if line.strip().startswith("Usage:"))
    flags = [argument for argument in arguments if argument.startswith("-")]
    if flags:
        raise ConfigError(f"unknown flag {flags[0]}. {usage}")
    if len(arguments) < at_least or (at_most is not None and len(arguments) > at_most):
        raise ConfigError(f"found {len(arguments)} arguments. {usage}")
    return list(arguments)
