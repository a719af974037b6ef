"""Benchmarks, side by side: python tests/benchmarks/run.py [NAME ...] [--quick] [--json FILE]

Each file of rows/ is a row. Ours and the peer are timed in turn in one go; printed are medians, the ratio
(median over rounds of each round's own, and its spread), what it should reach and whether it does.
OMP_NUM_THREADS sets the threads of both sides (default: the cores this process may use). Nothing here fails
because something is slow; the exit status is 0 unless a row cannot run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarking import COLUMNS, HEAD, Benchmark, Result, Settings

from gpt2exp.errors import Gpt2ExpError
from gpt2exp.suggest import did_you_mean
from gpt2exp.verification.upstream_parity import thread_count

ROWS = Path(__file__).resolve().parent / "rows"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the named rows, or all; exit status 2 for a name that is no row, 1 if a row could not run."""
    options = parse(arguments)
    settings = Settings(options.quick, thread_count(os.environ))
    # Before anything imports torch, which reads it once; child processes inherit it.
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    facts = head(settings)
    print("\n".join(f"{key:<8} {value}" for key, value in facts.items()), flush=True)
    names = options.names or row_names()
    width = max(map(len, names))
    print(COLUMNS.format(*HEAD, width=width))
    results = [result for name in names if (result := attempt(name, settings, width))]
    if options.json:
        record = {"head": facts, "rows": [result.record() for result in results]}
        Path(options.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if len(results) == len(names) else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; ends the process with status 2 where it makes no sense."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"rows: {', '.join(row_names())}")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    parser.add_argument("--json", metavar="FILE", help="write head and rows there too")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in row_names():
            parser.error(f"no row {name}{did_you_mean(name, row_names())}; there are {', '.join(row_names())}")
    return options


def row_names() -> list[str]:
    """Every file of rows/ is one row."""
    return sorted(file.stem for file in ROWS.glob("*.py"))


def load(name: str) -> Benchmark:
    """The row that rows/<name>.py defines as `ROW`."""
    spec = importlib.util.spec_from_file_location(f"benchmark_row_{name}", ROWS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    row: Benchmark = module.ROW
    return row


def attempt(name: str, settings: Settings, width: int) -> Result | None:
    """Measure and print one row; one that cannot run here says why and the others go on."""
    try:
        benchmark = load(name)
        result = Result(name, benchmark, benchmark.measure(settings))
    except (Gpt2ExpError, ImportError) as error:
        print(f"{name:<{width}}  could not run: {error}", flush=True)
        return None
    print(result.line(width), flush=True)
    for note in (f"{benchmark.what}; against {benchmark.peer}", *result.measurement.notes):
        print(f"{'':<{width}}    {note}", flush=True)
    return result


def head(settings: Settings) -> dict[str, Any]:
    """What the numbers were measured on."""
    from importlib.metadata import version

    from gpt2exp.engines.torch.backends.local import cpu_model

    load = " ".join(f"{value:.2f}" for value in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown"
    return {
        "machine": f"{cpu_model()}, {os.cpu_count()} cores, {platform.platform()}",
        "threads": f"{settings.threads}, OMP_WAIT_POLICY={os.environ['OMP_WAIT_POLICY']}",
        "torch": version("torch"),
        "python": platform.python_version(),
        "load": f"{load} (1, 5, 15 minutes, before)",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "mode": "quick" if settings.quick else "full",
    }


if __name__ == "__main__":
    sys.exit(main())
