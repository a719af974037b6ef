"""resume RUN: continue a paused, stopped or killed run, bit for bit.

Usage: gpt2exp resume RUN [key=value ...]

Learning rate, decay and budget come from the run's own configuration and step. The keys worth giving are
`stop_after_steps=N` (pause again there) and `resume.allow_inexact=true` (accept another machine, thread
count or version; the run is stamped).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpt2exp import rundir
from gpt2exp.compose import load_config
from gpt2exp.experiment import Request, run
from gpt2exp.verbs_help import positional


def main(arguments: list[str]) -> int:
    """Resume; the exit status of a run."""
    (folder, *overrides) = positional(arguments, __doc__, at_least=1)
    path = Path(folder)
    record = rundir.read_record(path)
    pause = [text for text in overrides if text.startswith("stop_after_steps=")]
    cfg = load_config(path, ["stop_after_steps=null", *(o for o in overrides if o not in pause), *pause])
    cfg = replace(cfg, resume=replace(cfg.resume, enabled=True))
    run(cfg, Request(path.resolve(), record["choices"], tuple(record["overrides"])))
    return 0
