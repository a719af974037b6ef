"""verify upstream: our numbers against upstream's own script, digit by digit.

Usage: gpt2exp verify upstream [--keep FOLDER]

Trains GPT-2 (124M, 10 steps) twice on the same small shards, seed and thread count, each in a process of
its own: with karpathy/llm.c's train_gpt2.py as it is, and with gpt2exp preset=upstream_parity. Prints losses,
norms, learning rates and validation losses of both, with the digits upstream prints. Takes minutes and about
3 GB of memory. OMP_NUM_THREADS sets the threads of both (default: the cores this process may use).

--keep FOLDER keeps shards, outputs and our run directory in FOLDER, which must be new or empty.

Exit status: 0 all equal; 5 a digit differs; 3 upstream's file or GPT-2's vocabulary is missing (the latter
comes with pip install 'gpt2exp[bpe]'), or a process failed.
"""

from __future__ import annotations

from pathlib import Path

from gpt2exp.errors import ConfigError
from gpt2exp.suggest import did_you_mean
from gpt2exp.verbs_help import positional

KEEP = "--keep"
SUBJECTS = ("upstream",)


def main(arguments: list[str]) -> int:
    """Verify; 0 if all digits are equal."""
    rest, keep = split_keep(arguments)
    (subject,) = positional(rest, __doc__, at_least=1, at_most=1)
    if subject not in SUBJECTS:
        raise ConfigError(
            f"verify {subject}: there is {', '.join(SUBJECTS)}{did_you_mean(subject, SUBJECTS)}; "
            "see gpt2exp verify --help"
        )
    from gpt2exp.verification.upstream_parity import verify_upstream

    verify_upstream(Path(keep).expanduser() if keep is not None else None)
    return 0


def split_keep(arguments: list[str]) -> tuple[list[str], str | None]:
    """The other arguments, and the value of `--keep FOLDER` or `--keep=FOLDER`.

    Raises:
        ConfigError: `--keep` without a folder.
    """
    rest: list[str] = []
    keep = None
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if name != KEEP:
            rest.append(argument)
            continue
        keep = value if equals else next(remaining, "")
        if not keep or keep.startswith("-"):
            raise ConfigError(f"{KEEP} needs a folder: gpt2exp verify upstream {KEEP} FOLDER")
    return rest, keep
