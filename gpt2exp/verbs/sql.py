"""sql COMMAND: look into the SQL engine (gpt2exp sql --help lists what there is).

Usage: gpt2exp sql COMMAND ...
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import gpt2exp.sql_reports
from gpt2exp.errors import ConfigError
from gpt2exp.suggest import did_you_mean
from gpt2exp.verbs_help import HelpShown

SUFFIX = "_command"


def main(arguments: list[str]) -> int:
    """Hand over to a command, or list them."""
    if not arguments or arguments[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:<10} {text}" for name, text in commands().items())
        text = f"Usage: gpt2exp sql COMMAND ...   (gpt2exp sql COMMAND --help)\n\n{listed}"
        if not arguments:
            raise ConfigError(f"sql: which of {', '.join(commands())}? (gpt2exp sql --help says what each does)")
        print(text)
        raise HelpShown(0)
    name, *rest = arguments
    if name not in commands():
        raise ConfigError(f"sql {name}: there is {', '.join(commands())}{did_you_mean(name, list(commands()))}")
    return int(importlib.import_module(f"{gpt2exp.sql_reports.__name__}.{name}{SUFFIX}").main(rest))


def commands() -> dict[str, str]:
    """Commands and the first line of their documentation, without importing them."""
    folder = Path(gpt2exp.sql_reports.__path__[0])
    names = (module.name for module in pkgutil.iter_modules([str(folder)]) if module.name.endswith(SUFFIX))
    return {name.removesuffix(SUFFIX): summary(folder / f"{name}.py") for name in names}


def summary(file: Path) -> str:
    """What a command's documentation says behind its name."""
    return file.read_text(encoding="utf-8").split('"""')[1].splitlines()[0].partition(": ")[2]
