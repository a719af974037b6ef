"""Arguments of verbs: their module's documentation is their help."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

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
    usage = usage_line(doc)
    flags = [argument for argument in arguments if argument.startswith("-")]
    if flags:
        raise ConfigError(f"unknown flag {flags[0]}. {usage}")
    if len(arguments) < at_least or (at_most is not None and len(arguments) > at_most):
        raise ConfigError(f"found {len(arguments)} arguments. {usage}")
    return list(arguments)


class VerbParser(argparse.ArgumentParser):
    """argparse for a verb with flags: its module's documentation is its help, its mistakes are ours."""

    def __init__(self, doc: str | None) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        assert doc is not None
        self.doc = doc

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The parsed arguments, after answering --help.

        Raises:
            ConfigError: with the verb's usage line.
            HelpShown: `--help` was given.
        """
        if {"-h", "--help"} & set(arguments):
            print(f"gpt2exp {self.doc.strip()}")
            raise HelpShown(0)
        return self.parse_intermixed_args(list(arguments))

    def error(self, message: str) -> NoReturn:
        """One line, exit 2."""
        raise ConfigError(f"{self.doc.split(' ', 1)[0]}: {message}. {usage_line(self.doc)}")


def usage_line(doc: str) -> str:
    """The line of a verb's documentation that begins with `Usage:`."""
    return next(line.strip() for line in doc.splitlines() if line.strip().startswith("Usage:"))
