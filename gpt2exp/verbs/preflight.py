"""preflight [overrides]: try a run out on its machine: checks, memory, parity with the CPU, full-size updates, time.

Usage: gpt2exp preflight [--config RUN|FILE] [--hours H] [--unless-fresh] [overrides]  or  preflight --memory-table

In order: the model's file and its inventory, data, token ids, disk, memory and micro-batch, the device, tied weights
after the move there, logits at full context and gradients of accumulated micro-batches against plain PyTorch on the
CPU in fp32, three updates at the real batch, compilations, projected time. Works on every hardware. The weights it
moves are thrown away. With protocol=NAME every run of it is tried out.

--config RUN|FILE  the configuration of a run directory, or a config.yaml; overrides are then key=value only
--hours H          refuse when the whole budget would take longer
--unless-fresh     do nothing on the device when a stamp that matches is there
--memory-table     print docs/memory_16GiB.md and try nothing out

What passed is stamped in the cache folder ($GPT2EXP_CACHE/preflight) with machine, boot and versions, and counts for 24
hours: hardware.preflight=required starts no run without it, hardware.preflight=auto makes it first.

Exit status: 0 all passed; 3 a check failed or the time is too long, and no stamp is left; 6 data; 7 storage.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from gpt2exp.compose import compose, load_config
from gpt2exp.config import Config
from gpt2exp.verbs.check import plan_and_configs
from gpt2exp.verbs_help import VerbParser


def main(arguments: list[str]) -> int:
    """Try out, one run after the other."""
    options = _options(arguments)
    if options.memory_table:
        from gpt2exp.preflight.memory_table import document

        print(document(), end="")
        return 0
    from gpt2exp.preflight.trial import preflight

    for cfg in configs(options.config, options.overrides):
        preflight(cfg, options.hours, options.unless_fresh)
    return 0


def configs(recorded: Path | None, overrides: Sequence[str]) -> list[Config]:
    """The recorded configuration, every run of a protocol, or the one that `overrides` select."""
    if recorded is not None:
        return [load_config(recorded, overrides)]
    planned = plan_and_configs(overrides)
    return [compose(overrides)] if planned is None else planned[1]


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = VerbParser(__doc__)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--hours", type=_hours)
    parser.add_argument("--unless-fresh", action="store_true")
    parser.add_argument("--memory-table", action="store_true")
    return parser.parse(arguments)


def _hours(text: str) -> float:
    hours = float(text)
    if not (math.isfinite(hours) and hours > 0):
        raise argparse.ArgumentTypeError(f"{text}: must be greater than 0")
    return hours
