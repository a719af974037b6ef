"""What the command line may hold besides Hydra's overrides: verbs, Hydra's flags, and common mistakes."""

from __future__ import annotations

import pkgutil
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gpt2exp.verbs
from gpt2exp.config import shipped
from gpt2exp.errors import ConfigError
from gpt2exp.suggest import did_you_mean, nearest

HELP_FLAGS = frozenset(["-h", "--help"])
SWITCHES = {
    "-r": "--run",
    "-m": "--multirun",
    "-sc": "--shell-completion",
    "--shell_completion": "--shell-completion",
    "--resolve": "--resolve",
    "--hydra-help": "--hydra-help",
}
FLAGS_WITH_VALUE = {
    "-c": "--cfg",
    "-p": "--package",
    "-i": "--info",
    "-cn": "--config-name",
    "-cd": "--config-dir",
}
CHOICES = {
    "--cfg": ("job", "hydra", "all"),
    "--info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
}
HYDRA_FLAGS = {long: long for long in (*SWITCHES.values(), *FLAGS_WITH_VALUE.values())} | SWITCHES | FLAGS_WITH_VALUE

OTHER_TRAINERS_FLAGS = {
    "learning_rate": "optimizer.lr={value}",
    "lr": "optimizer.lr={value}",
    "weight_decay": "optimizer.weight_decay={value}",
    "beta1": "'optimizer.betas=[{value},<beta2>]'",
    "beta2": "'optimizer.betas=[<beta1>,{value}]'",
    "grad_clip": "optimizer.max_grad_norm={value}",
    "max_iters": "schedule.num_steps={value}",
    "num_iterations": "schedule.num_steps={value}",
    "warmup_iters": "schedule.warmup_steps={value}",
    "min_lr": "schedule.min_lr_ratio=<{value} / optimizer.lr>",
    "learning_rate_decay_frac": "schedule.min_lr_ratio={value}",
    "total_batch_size": "schedule.tokens_per_step={value}",
    "gradient_accumulation_steps": "schedule.tokens_per_step=<{value} x batch size x context>",
    "sequence_length": "schedule.context_length={value}",
    "block_size": "schedule.context_length={value}",
    "batch_size": "hardware.micro_batch_size={value}",
    "n_layer": "model.n_layer={value}",
    "n_head": "model.n_head={value}",
    "n_embd": "model.n_embd={value}",
    "bias": "model.bias={value}",
    "dtype": "precision={value}",
    "device": "hardware={value}",
    "dataset": "data={value}",
    "input_bin": "data=shards data.train={value}",
    "input_val_bin": "data=shards data.val={value}",
    "eval_interval": "evaluation.every={value}",
    "val_loss_every": "evaluation.every={value}",
    "log_interval": "logging.log_every={value}",
    "out_dir": "hydra.run.dir={value}",
    "output_dir": "hydra.run.dir={value}",
}
"""Flags of nanoGPT's and llm.c's trainers, and what they are called here."""


@dataclass(frozen=True)
class CommandLine:
    """Arguments sorted into Hydra's flags, written `--flag` or `--flag=value`, and overrides."""

    flags: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()

    def value(self, flag: str) -> str | None:
        """The value given to a flag."""
        return next((f.partition("=")[2] for f in self.flags if f.startswith(f"{flag}=")), None)

    @property
    def multirun(self) -> bool:
        """Whether sweeps are allowed."""
        return "--multirun" in self.flags

    @property
    def for_hydra(self) -> list[str]:
        """Flags first: argparse does not take them between overrides."""
        return [*self.flags, *self.overrides]


def parse(arguments: Sequence[str]) -> CommandLine:
    """Sort the arguments; flags that Hydra does not have and bare words are refused.

    Raises:
        ConfigError: naming the override to write instead.
    """
    flags: list[str] = []
    overrides: list[str] = []
    problems: list[str] = []
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        if not argument.startswith("-"):
            overrides.append(argument)
            problems += _word_problems(argument)
            continue
        name, equals, value = argument.partition("=")
        flag = HYDRA_FLAGS.get(name)
        if not equals and flag not in SWITCHES.values() and rest and _is_value(rest[0], flag):
            value = rest.popleft()
        if flag is None:
            problems.append(_unknown_flag(argument, name, value))
        else:
            value = "all" if flag == "--info" and not value else value
            problems += _flag_problems(flag, value)
            flags.append(f"{flag}={value}" if value else flag)
    if problems:
        raise ConfigError(problems)
    return CommandLine(tuple(flags), tuple(overrides))


def _is_value(following: str, flag: str | None) -> bool:
    """Whether the next argument belongs to a flag; an override never does, but a folder may hold '='."""
    return not following.startswith("-") and ("=" not in following or flag in ("--config-dir", "--package"))


def _word_problems(argument: str) -> list[str]:
    if "=" in argument or argument.startswith("~"):
        return []
    if is_verb(argument):
        return [f"'{argument}' is a verb and comes first: gpt2exp {argument} ..."]
    if argument in ("train", "run"):
        return [f"'{argument}': training takes no verb: gpt2exp [group=option ...] [key=value ...]"]
    choices = {option: f"{group}={option}" for group, options in groups().items() for option in options}
    word = nearest(argument, [*verbs(), *choices])
    hint = f"; did you mean {choices.get(word, word)}?" if word else ""
    return [f"'{argument}' is neither a verb nor key=value{hint} (gpt2exp --help lists both)"]


def _flag_problems(flag: str, value: str) -> list[str]:
    choices = CHOICES.get(flag)
    if choices and value not in choices:
        return [f"{flag} {value}: choose one of {', '.join(choices)}".replace(" :", ":")]
    if flag in SWITCHES.values():
        return [f"{flag}={value}: takes no value"] if value else []
    if not value:
        return [f"{flag}: needs a value"]
    if flag == "--config-dir" and not Path(value).is_dir():
        return [f"{flag} {value}: no such folder"]
    return []


def _unknown_flag(argument: str, name: str, value: str) -> str:
    value = value or "<value>"
    word = name.lstrip("-")
    known = OTHER_TRAINERS_FLAGS.get(word.replace("-", "_"))
    if known:
        return f"{argument}: gpt2exp takes overrides, not flags; write {known.format(value=value)}"
    if word in groups() or word == "seed" or "." in word:
        return f"{argument}: gpt2exp takes overrides, not flags; write {word}={value}"
    if name in ("-cp", "--config-path"):
        return f"{argument}: gpt2exp's own configuration stays; add a folder of yours with -cd DIR [-cn NAME]"
    hint = did_you_mean(word, [flag.lstrip("-") for flag in HYDRA_FLAGS], prefix="--")
    return f"{argument}: unknown flag{hint}; settings are written key=value (gpt2exp --help)"


def verbs() -> dict[str, str]:
    """Verbs and the first line of their documentation, without importing them."""
    folder = Path(gpt2exp.verbs.__path__[0])
    names = (module.name for module in pkgutil.iter_modules([str(folder)]))
    return {name: _summary(folder / f"{name}.py") for name in names}


def _summary(file: Path) -> str:
    return file.read_text(encoding="utf-8").split('"""')[1].splitlines()[0].split(": ", 1)[-1]


def is_verb(word: str) -> bool:
    """Whether `word` names a verb; overrides always hold '=' and flags start with '-'."""
    return word.isidentifier() and word in verbs()


def version() -> str:
    """`gpt2exp <version>`."""
    return f"gpt2exp {gpt2exp.__version__}\n"


def groups() -> dict[str, list[str]]:
    """Configuration groups and their options, read from the shipped folders."""
    found = {
        folder.name: sorted(file.stem for file in folder.glob("*.yaml"))
        for folder in sorted(shipped("conf").iterdir())
        if folder.is_dir() and folder.name != "hydra" and not folder.name.startswith("__")
    }
    found["protocol"] = sorted(file.stem for file in shipped("multirun_protocols").glob("*.yaml"))
    return found


def help_text() -> str:
    """The text of `gpt2exp --help`; lists only what is there."""
    options = {name: " | ".join(options) for name, options in groups().items()}
    return HELP.format(groups=_table(options), verbs=_table(verbs()))


def _table(rows: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"  {name:<11} {text}" for name, text in dict(rows).items())


HELP = """\
gpt2exp: controlled optimizer experiments on an unmodified GPT-2

Usage
  gpt2exp [group=option ...] [key=value ...]     train one run
  gpt2exp -m key=value,value ...                 train one run for each combination
  gpt2exp <verb> ...                             something else; gpt2exp <verb> --help

Examples
  gpt2exp                                        a small GPT on the standard library's source, CPU
  gpt2exp optimizer=adamw_nano seed=1            another arm, another seed
  gpt2exp data=text 'data.paths=[notes/*.txt]'   your own text
  gpt2exp stop_after_steps=100                   pause there; gpt2exp resume RUN goes on, bit for bit
  gpt2exp -m protocol=six_run_nano               two arms, three seeds each, and a report
  gpt2exp --cfg job optimizer=adamw              print the configuration, train nothing
  eval "$(gpt2exp -sc install=bash)"             complete groups, options and keys in this shell

Groups
{groups}

Verbs
{verbs}

Hydra's own flags: --cfg job|hydra|all, --resolve, -m, --info, -cd DIR, -cn NAME, -sc, --hydra-help.

Exit status
  0 complete   2 configuration   3 refused by the environment   4 stopped, resumable
  5 numerical  6 data            7 storage                      130 interrupted twice
"""
