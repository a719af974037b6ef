"""`gpt2exp [overrides]` trains; `gpt2exp <verb> ...` does everything else."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from gpt2exp.errors import Gpt2ExpError

if TYPE_CHECKING:
    from omegaconf import DictConfig

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script: exits with the status that docs/exit codes in `--help` describe."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        sys.exit(dispatch(arguments))
    except Gpt2ExpError as error:
        sys.exit(report(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def dispatch(arguments: list[str]) -> int:
    """Run a verb, print help, or train."""
    from gpt2exp import command_line

    first = arguments[0] if arguments else ""
    if first in ("-h", "--help", "--version"):
        print(command_line.version() if first == "--version" else command_line.help_text(), end="")
        return 0
    if command_line.is_verb(first):
        return int(import_module(f"gpt2exp.verbs.{first}").main(arguments[1:]))
    command_line.refuse_flags_and_words(arguments)
    train(arguments)
    return 0


def train(arguments: list[str]) -> None:
    """Hand the command line to Hydra: compose, gate, then `task` for each run."""
    import hydra

    from gpt2exp.compose import CONFIG_NAME, register
    from gpt2exp.config import shipped

    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = ["gpt2exp", *arguments]
    decorate = hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name=CONFIG_NAME)
    try:
        decorate(task)()
    except (Gpt2ExpError, KeyboardInterrupt, BrokenPipeError):
        raise
    except Exception as error:
        refuse_composition(arguments, error)


def task(cfg: DictConfig) -> float | None:
    """One run, as Hydra calls it; every expected failure leaves as an exit status, not a traceback."""
    from hydra.core.hydra_config import HydraConfig

    from gpt2exp.experiment import Request, run
    from gpt2exp.validate import typed

    try:
        return run(typed(cfg), Request.from_hydra(HydraConfig.get()))
    except Gpt2ExpError as error:
        raise SystemExit(report(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def refuse_composition(arguments: list[str], error: Exception) -> None:
    """Turn a failure of Hydra's own (before any run started) into our lines; pass on anything else."""
    from gpt2exp.command_line import overrides_of
    from gpt2exp.compose import hydra_ready
    from gpt2exp.errors import ConfigError
    from gpt2exp.explain import composition_failed, explain

    if not composition_failed(error):
        raise error
    with hydra_ready():
        raise ConfigError(explain(overrides_of(arguments), error)) from None


def report(error: Gpt2ExpError) -> int:
    """Print the error's lines to stderr and give its exit status."""
    for line in str(error).splitlines():
        print(f"gpt2exp: {line}", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    main()
