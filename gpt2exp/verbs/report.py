"""report PATH [PATH ...]: one page on a protocol, a run, several runs or an llm.c log.

Usage: gpt2exp report PATH [PATH ...] [--to FOLDER] [--allow-pooling KEY ...]

Writes report.html (opens offline), report.md, and report/ with tables as CSV and figures as PNG and SVG, into the first
folder unless --to says where. A protocol that is not complete gets a report that says so at its top and computes no
paired statistics. Runs that no plan joins are shown side by side and never pooled. --allow-pooling execution.torch
compares runs that differ in that key; the report's head says so. Exit 0, or 4 where a protocol is incomplete.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gpt2exp.errors import ConfigError
from gpt2exp.report.publish import publish_report
from gpt2exp.verbs_help import VerbParser

INCOMPLETE = 4


def main(arguments: list[str]) -> int:
    """Assess, draw, write; what was found in a few lines."""
    options = _options(arguments)
    paths = [Path(name) for name in options.paths]
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: not there; expected a protocol's folder, a run directory or an llm.c log")
    target = Path(options.to) if options.to else paths[0] if paths[0].is_dir() else paths[0].parent
    findings = publish_report(paths, target, options.allow_pooling, print)
    return INCOMPLETE if findings.requested and not findings.complete else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = VerbParser(__doc__)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--to", metavar="FOLDER")
    parser.add_argument("--allow-pooling", action="append", default=[], metavar="KEY")
    return parser.parse(arguments)
