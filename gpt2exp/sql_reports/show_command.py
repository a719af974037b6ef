"""sql show: every statement of an update and of an evaluation, in order, with what each computes.

Usage: gpt2exp sql show [overrides]

Prints the model up to its loss, the gradients, the optimizer and what an evaluation adds. A comment gives the name of
the table that a statement's rows become and says what they are; `batch` (b, pos, token, target), the weights, the
optimizer's state and `schedule` (each update's scalars, a row a parameter group) are there before. grad(loss, w) is
the gradient library's. Several micro-batches repeat the part up to the gradients and add them up.

Every group and key can be set as for training, by default model=nanogpt_mini hardware=duckdb on synthetic
characters. Trains nothing, writes nothing, and needs no database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt2exp.errors import ConfigError
from gpt2exp.verbs_help import positional

if TYPE_CHECKING:
    from gpt2exp.config import Config
    from gpt2exp.engines.sql.statement import Statement

DEFAULTS = {
    "model": ("model=nanogpt_mini",),
    "hardware": ("hardware=duckdb",),
    "schedule": ("schedule.tokens_per_step=64", "schedule.context_length=16"),
    "data": ("data=synthetic", "data.vocab_size=65"),
    "evaluation": ("evaluation=off",),
    "tracking": ("tracking=off",),
}
"""By group, for those that are not chosen: they fit the smallest model. A preset chooses all but the hardware."""


def main(arguments: Sequence[str]) -> int:
    """Print the statements.

    Raises:
        ConfigError: the overrides do not fit, or ask for hardware that is no database.
    """
    from gpt2exp.engines.sql.show import statements

    print(listing(statements(configuration(positional(arguments, __doc__, at_least=0)))), end="")
    return 0


def configuration(overrides: Sequence[str]) -> Config:
    """The overrides on the defaults of this command.

    Raises:
        ConfigError: they do not fit, or the hardware is no database.
    """
    from gpt2exp.command_line import parse
    from gpt2exp.compose import compose
    from gpt2exp.rules import ENGINES

    given = parse(overrides).overrides
    chosen = {text.partition("=")[0] for text in given}
    groups = ["hardware"] if "preset" in chosen else DEFAULTS
    defaults = [text for group in groups if group not in chosen for text in DEFAULTS[group]]
    cfg = compose([*defaults, *given])
    if not ENGINES[cfg.hardware.kind].sql:
        hosts = " or ".join(f"hardware={kind}" for kind, limits in ENGINES.items() if limits.sql)
        raise ConfigError(f"sql show hardware={cfg.hardware.kind}: runs no statements; use {hosts}")
    return cfg


def listing(statements: Sequence[Statement]) -> str:
    """A comment and a query each, a blank line between them."""
    return "\n".join(f"-- {s.name}: {s.comment}\n{s.sql};\n" for s in statements)
