"""What the command line may hold besides Hydra's overrides: verbs, Hydra's flags, and common mistakes."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from pathlib import Path

import gpt2exp.verbs
from gpt2exp.config import shipped
from gpt2exp.errors import ConfigError
from gpt2exp.suggest import did_you_mean

HYDRA_FLAGS = frozenset(
    ["-c", "--cfg", "-p", "--package", "-r", "--run", "-m", "--multirun", "-sc", "--shell-completion",
     "--shell_completion", "-cp", "--config-path", "-cn", "--config-name", "-cd", "--config-dir", "-i",
     "--info", "--resolve", "--hydra-help"]
)  # fmt: skip
FLAGS_WITH_VALUE = frozenset(
    ["-c", "--cfg", "-p", "--package", "-cp", "--config-path", "-cn", "--config-name", "-cd", "--config-dir"]
)
INFO_TOPICS = frozenset(["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"])

NANOGPT_FLAGS = {
    "learning_rate": "optimizer.lr",
    "lr": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "beta1": "optimizer.betas",
    "beta2": "optimizer.betas",
    "grad_clip": "optimizer.max_grad_norm",
    "max_iters": "schedule.num_steps",
    "num_iterations": "schedule.num_steps",
    "warmup_iters": "schedule.warmup_steps",
    "min_lr": "schedule.min_lr_ratio",
    "learning_rate_decay_frac": "schedule.min_lr_ratio",
    "total_batch_size": "schedule.tokens_per_step",
    "sequence_length": "schedule.context_length",
    "block_size": "schedule.context_length",
    "batch_size": "hardware.micro_batch_size",
    "n_layer": "model.n_layer",
    "n_head": "model.n_head",
    "n_embd": "model.n_embd",
    "bias": "model.bias",
    "dtype": "precision",
    "device": "hardware",
    "dataset": "data",
    "input_bin": "data.train",
    "input_val_bin": "data.val",
    "eval_interval": "evaluation.every",
    "val_loss_every": "evaluation.every",
    "log_interval": "logging.log_every",
    "out_dir": "hydra.run.dir",
    "output_dir": "hydra.run.dir",
    "seed": "seed",
}


def verbs() -> dict[str, str]:
    """Verbs and the first line of their documentation, without importing them."""
    found = {}
    for module in pkgutil.iter_modules(gpt2exp.verbs.__path__):
        text = (Path(gpt2exp.verbs.__path__[0]) / f"{module.name}.py").read_text(encoding="utf-8")
        found[module.name] = text.split('"""')[1].splitlines()[0].split(": ", 1)[-1]
    return found


def is_verb(word: str) -> bool:
    """Whether `word` names a verb; overrides always hold '=' and flags start with '-'."""
    return word.isidentifier() and word in verbs()


def refuse_flags_and_words(arguments: Sequence[str]) -> None:
    """Stop at flags that Hydra does not have and at bare words.

    Raises:
        ConfigError: naming the override to write instead.
    """
    problems = []
    skip_value = False
    for position, argument in enumerate(arguments):
        if skip_value:
            skip_value = False
        elif argument.startswith("-"):
            skip_value = argument in FLAGS_WITH_VALUE
            following = arguments[position + 1 : position + 2]
            problems += _flag_problem(argument, following)
        elif "=" not in argument and not argument.startswith("~") and not _consumed(arguments, position):
            hint = did_you_mean(argument, list(verbs()))
            problems.append(f"'{argument}' is neither a verb nor key=value{hint}; see gpt2exp --help")
    if problems:
        raise ConfigError(problems)


def _flag_problem(argument: str, following: Sequence[str]) -> list[str]:
    name, _, value = argument.partition("=")
    if name in HYDRA_FLAGS:
        return []
    value = value or (following[0] if following and "=" not in following[0] else "<value>")
    word = name.lstrip("-").replace("-", "_")
    key = NANOGPT_FLAGS.get(word)
    if key:
        return [f"{argument}: gpt2exp takes overrides, not flags; write {key}={value}"]
    return [f"{argument}: unknown flag; settings are written key=value, see gpt2exp --help"]


def _consumed(arguments: Sequence[str], position: int) -> bool:
    """A bare word that belongs to the flag before it: `--info plugins`, or an unknown flag's value."""
    before = arguments[position - 1] if position else ""
    if before in ("-i", "--info"):
        return arguments[position] in INFO_TOPICS
    return before.startswith("-") and before not in HYDRA_FLAGS


def overrides_of(arguments: Sequence[str]) -> list[str]:
    """The overrides among the arguments."""
    kept = []
    skip = False
    for argument in arguments:
        if not skip and not argument.startswith("-"):
            kept.append(argument)
        skip = argument in FLAGS_WITH_VALUE
    return kept


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
    group_lines = "\n".join(f"  {name:<11} {' | '.join(options)}" for name, options in groups().items())
    verb_lines = "\n".join(f"  {name:<11} {line}" for name, line in verbs().items())
    return HELP.format(groups=group_lines, verbs=verb_lines)


HELP = """\
gpt2exp: controlled optimizer experiments on an unmodified GPT-2

Usage
  gpt2exp [group=option ...] [key=value ...]     train one run
  gpt2exp -m key=value,value ...                 train one run for each combination
  gpt2exp <verb> ...                             something else; gpt2exp <verb> --help

Examples
  gpt2exp                                        a small GPT on the standard library's source, CPU
  gpt2exp optimizer=sgd optimizer.lr=0.3 seed=1  another arm, another seed
  gpt2exp data=text 'data.paths=[notes/*.txt]'   your own text
  gpt2exp stop_after_steps=100                   pause there; gpt2exp resume RUN goes on, bit for bit
  gpt2exp -m protocol=three_seeds                the same run from three initialisations
  gpt2exp --cfg job optimizer=adamw              print the configuration, train nothing

Groups
{groups}

Verbs
{verbs}

Hydra's own flags: --cfg job|hydra|all, --resolve, -m, --info, --shell-completion, --hydra-help.

Exit status
  0 complete   2 configuration   3 refused by the environment   4 stopped, resumable
  5 numerical  6 data            7 storage                      130 interrupted twice
"""
