"""The digits two runs printed, side by side: upstream's from its output, ours from the run directory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2exp import rundir

QUANTITIES = ("train loss", "norm", "lr", "val loss")
WIDTHS = (10, 9, 9, 20)
MARK = "<-- differs"
MISSING = "-"

Digits = dict[tuple[int, str], str]
"""(step, quantity) -> the number as upstream prints it. Step 0 is before the first update."""

_TRAIN_LINE = re.compile(r"step +(\d+)/\d+ \| train loss (\S+) \| norm (\S+) \| lr (\S+) \|")
_VAL_LINE = re.compile(r"val loss (\S+)")


def upstream_digits(output: str) -> Digits:
    """What upstream's script printed; its validation comes before the update that follows the step."""
    found: Digits = {}
    step = 0
    for line in output.splitlines():
        if train := _TRAIN_LINE.match(line):
            step = int(train[1])
            found |= _keyed(step, zip(QUANTITIES, train.groups()[1:], strict=False))
        elif val := _VAL_LINE.fullmatch(line):
            found[step, "val loss"] = val[1]
    return found


def our_digits(run: Path) -> Digits:
    """The rows of a run directory, formatted as upstream formats its numbers.

    Upstream's validation loss is a mean of batch means, which is `batch_mean_loss`; our `val_loss` is a
    mean over tokens in float64 and need not have the same digits.
    """
    found: Digits = {}
    for row in rundir.read_rows(run, "metrics"):
        numbers = {
            "train loss": formatted(row["loss"], ".6f"),
            "norm": formatted(row["grad_norm"], ".4f"),
            "lr": _learning_rate(row),
        }
        found |= _keyed(row["step"], numbers.items())
    for row in rundir.read_rows(run, "evaluations"):
        found[row["step"], "val loss"] = formatted(row["batch_mean_loss"], "")
    return found


def formatted(value: float | None, form: str) -> str:
    """`value` in a format of `str.format`; what was not finite is recorded as null."""
    return "not finite" if value is None else format(value, form)


@dataclass(frozen=True)
class Comparison:
    """Two sets of digits; a number that only one of them has differs."""

    upstream: Digits
    ours: Digits

    @property
    def keys(self) -> list[tuple[int, str]]:
        """Every (step, quantity) of either, in the order of printing."""
        both = self.upstream.keys() | self.ours.keys()
        return sorted(both, key=lambda key: (key[0], QUANTITIES.index(key[1])))

    @property
    def differences(self) -> list[str]:
        """One text a number that differs, first step first."""
        return [
            f"{quantity} at step {step}: upstream {self.upstream.get((step, quantity), MISSING)}, "
            f"gpt2exp {self.ours.get((step, quantity), MISSING)}"
            for step, quantity in self.keys
            if self.upstream.get((step, quantity)) != self.ours.get((step, quantity))
        ]

    def table(self) -> Iterator[str]:
        """Lines: a head, then one row a step, marked where any number differs."""
        width = sum(WIDTHS) + len(WIDTHS) - 1
        yield f"{'':>4}  {'upstream':<{width}}  gpt2exp".rstrip()
        yield f"{'step':>4}  {_cells(QUANTITIES)}  {_cells(QUANTITIES)}".rstrip()
        for step in sorted({step for step, _ in self.keys}):
            left, right = (_row(digits, step) for digits in (self.upstream, self.ours))
            yield f"{step:>4}  {left}  {right}  {'' if left == right else MARK}".rstrip()


def _keyed(step: int, numbers: Iterable[tuple[str, str]]) -> Digits:
    return {(step, quantity): text for quantity, text in numbers}


def _learning_rate(row: Mapping[str, Any]) -> str:
    """Upstream has one rate; should our groups ever differ, all of them show."""
    rates = {format(value, ".2e") for key, value in row.items() if key.startswith("lr/")}
    return "/".join(sorted(rates))


def _row(digits: Digits, step: int) -> str:
    return _cells([digits.get((step, quantity), "") for quantity in QUANTITIES])


def _cells(texts: Iterable[str]) -> str:
    return " ".join(f"{text:>{width}}" for text, width in zip(texts, WIDTHS, strict=True))
