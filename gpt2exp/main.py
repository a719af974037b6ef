"""`gpt2exp [overrides]` trains; `gpt2exp <verb> ...` does everything else."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from gpt2exp.errors import ConfigError, Gpt2ExpError, StorageError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gpt2exp.command_line import CommandLine

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script: exits with one of the statuses that `gpt2exp --help` lists."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # Idle OpenMP threads sleep instead of spinning: as fast on a quiet machine, 1.5 times on a shared one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        status = dispatch(arguments)
        sys.stdout.flush()
        sys.exit(status)
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

    if arguments and command_line.is_verb(arguments[0]):
        return int(import_module(f"gpt2exp.verbs.{arguments[0]}").main(arguments[1:]))
    if not command_line.HELP_FLAGS.isdisjoint(arguments):
        print(command_line.help_text(), end="")
    elif "--version" in arguments:
        print(command_line.version(), end="")
    else:
        train(command_line.parse(arguments))
    return 0


def train(command: CommandLine) -> None:
    """Hand the command line to Hydra: compose, gate, then `task` for each run."""
    import hydra

    from gpt2exp.config import shipped
    from gpt2exp.schemas import CONFIG_NAME, register, version_base

    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = ["gpt2exp", *command.for_hydra]
    decorate = hydra.main(config_path=str(shipped("conf")), config_name=CONFIG_NAME, **version_base())
    try:
        decorate(task)()
    except BrokenPipeError:
        raise
    except Exception as error:
        raise refusal(command, error) from None


def task(cfg: DictConfig) -> float | None:
    """One run, as Hydra calls it; whatever fails leaves as an exit status, which stops a multirun.

    An `Exception` that reaches Hydra would be taken for a failed composition: see `train`.
    """
    from hydra.core.hydra_config import HydraConfig

    from gpt2exp.experiment import Request, run
    from gpt2exp.validate import typed

    try:
        return run(typed(cfg), Request.from_hydra(HydraConfig.get()))
    except Gpt2ExpError as error:
        raise SystemExit(report(error)) from None
    except KeyboardInterrupt:
        print("gpt2exp: interrupted at once; the newest checkpoint stands, gpt2exp resume goes on", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None


def refusal(command: CommandLine, error: Exception) -> Gpt2ExpError:
    """A failure of Hydra's own, before any run started, as our lines."""
    from hydra.errors import HydraException

    from gpt2exp.compose import hydra_ready
    from gpt2exp.explain import Explainer, describe
    from gpt2exp.schemas import CONFIG_NAME

    if isinstance(error, OSError) and not isinstance(error, HydraException):
        return StorageError(f"{error.filename}: {error.strerror}; choose another hydra.run.dir or hydra.sweep.dir")
    if "--shell-completion" in command.flags:
        return ConfigError(f"--shell-completion: {describe(error)}")
    with hydra_ready(command.value("--config-dir")):
        explainer = Explainer(command.value("--config-name") or CONFIG_NAME, command.multirun)
        return ConfigError(explainer.explain(command.overrides, error))


def report(error: Gpt2ExpError) -> int:
    """Print the error's lines to stderr and give its exit status."""
    for line in error.problems if isinstance(error, ConfigError) else str(error).splitlines():
        print("gpt2exp:", line.replace("\n", "\\n"), file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    main()
