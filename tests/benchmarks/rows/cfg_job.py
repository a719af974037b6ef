"""The time to compose and print a configuration: gpt2exp against a bare Hydra app with as many options."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from benchmarking import Benchmark, Measurement, Reach, Settings, alternate

from gpt2exp.config import shipped

APP = """\
import hydra


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    pass


main()
"""


def measure(settings: Settings) -> Measurement:
    """Start both processes in turn; each prints the composed configuration."""
    with TemporaryDirectory(prefix="gpt2exp_benchmark_") as name:
        folder = Path(name)
        ours = [sys.executable, "-m", "gpt2exp", "--cfg", "job"]
        files = write_bare_app(folder, yaml.safe_load(printed(ours, folder)))
        bare = [sys.executable, str(folder / "app.py"), "--cfg", "job"]
        taken = alternate(lambda: printed(ours, folder), lambda: printed(bare, folder), settings.choose(15, 7))
        lines = [len(printed(command, folder).splitlines()) for command in (ours, bare)]
    note = f"{files} YAML files each; printed lines: ours {lines[0]}, bare app {lines[1]}"
    return replace(taken, notes=(note,))


def printed(command: list[str], folder: Path) -> str:
    """What a command prints; it must succeed."""
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def write_bare_app(folder: Path, composed: dict[str, Any]) -> int:
    """An app with our options as plain YAML, no schemas and no callback, that composes the same values.

    Returns:
        The number of its YAML files.
    """
    shutil.copytree(shipped("conf"), folder / "conf", ignore=shutil.ignore_patterns("__*"))
    shutil.copytree(shipped("multirun_protocols"), folder / "conf" / "protocol")
    (folder / "app.py").write_text(APP, encoding="utf-8")
    files = sorted((folder / "conf").rglob("*.yaml"))
    for file in files:
        make_plain(file)
    fill_in(folder / "conf", composed)
    return len(files)


def make_plain(file: Path) -> None:
    """Take our schemas, resolvers and Hydra settings out of one file; its first comment line stays."""
    text = file.read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text) or {}
    content.pop("hydra", None)
    entries = [entry for entry in content.pop("defaults", []) if not foreign(entry)]
    if entries:
        content = {"defaults": entries, **content}
    head = text.splitlines()[0] + "\n" if text.startswith("#") else ""
    file.write_text(head + yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def fill_in(conf: Path, composed: dict[str, Any]) -> None:
    """Write what our schemas add into the chosen options and into config.yaml."""
    main = yaml.safe_load((conf / "config.yaml").read_text(encoding="utf-8"))
    chosen = {group: name for entry in main["defaults"] if isinstance(entry, dict) for group, name in entry.items()}
    for key, value in composed.items():
        option = conf / key / f"{chosen.get(key)}.yaml"
        if option.is_file():
            option.write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")
        else:
            main[key] = value
    (conf / "config.yaml").write_text(yaml.safe_dump(main, sort_keys=False), encoding="utf-8")


def foreign(entry: Any) -> bool:
    """Whether an entry of a defaults list needs what a bare app lacks."""
    words = [entry] if isinstance(entry, str) else [str(key) for key in entry]
    return any("schema" in word or "hydra/" in word for word in words)


ROW = Benchmark(
    "gpt2exp --cfg job, a process from start to end",
    "a bare Hydra app with the same folder of options",
    Reach(1.3),
    measure,
)
