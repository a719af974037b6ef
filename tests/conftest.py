"""Shared fixtures: a run small enough for every test, and the command line without a new process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpt2exp.config import cache_folder

# Before torch is imported: two workers on two cores must not spin against each other. `gpt2exp` does the same.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

REAL_CACHE = cache_folder()
"""As it is before a test gives itself another."""
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

TINY_RUN = (
    "model=tiny",
    "schedule.num_steps=4",
    "schedule.warmup_steps=1",
    "schedule.tokens_per_step=128",
    "schedule.context_length=32",
    "data=synthetic",
    "data.train_tokens=4096",
    "data.val_tokens=1025",
    "evaluation.every=2",
    "evaluation.tokens=256",
    "checkpoint.every=2",
    "logging.log_every=1",
    "sample.tokens=0",
    "tracking=off",
    "hardware.threads=1",
)


@pytest.fixture(scope="session")
def tinyshakespeare() -> Path:
    """The real file, where this machine has it."""
    cached = REAL_CACHE / "tinyshakespeare" / TINYSHAKESPEARE_SHA256 / "input.txt"
    path = Path(os.environ.get("GPT2EXP_TINYSHAKESPEARE", cached))
    if not path.is_file():
        pytest.skip("no tinyshakespeare: set GPT2EXP_TINYSHAKESPEARE to its input.txt")
    return path


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def problems(self) -> list[str]:
        """Lines of stderr, each without its `gpt2exp: `."""
        return [line.removeprefix("gpt2exp: ") for line in self.err.splitlines()]


CommandLine = Callable[..., Finished]


@pytest.fixture(scope="session")
def tiny_run() -> list[str]:
    """Overrides of a run of 4 steps that takes well under a second: 2 layers x 64, synthetic tokens."""
    return list(TINY_RUN)


@pytest.fixture
def no_hydra() -> Iterator[None]:
    """Hydra's global state as in a fresh process, and left so."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    def reset() -> None:
        GlobalHydra.instance().clear()
        HydraConfig.instance().cfg = None

    reset()
    yield
    reset()


@pytest.fixture
def cli(
    no_hydra: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> CommandLine:
    """`cli("seed=1", ...)` is `gpt2exp seed=1 ...` in this process; the working directory is tmp_path."""
    from gpt2exp.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["gpt2exp"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")

    def call(*arguments: str) -> Finished:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(list(arguments))
        status = exit_.value.code
        assert isinstance(status, int | None), f"a message as exit status: {status!r}"
        captured = capsys.readouterr()
        return Finished(status or 0, captured.out, captured.err)

    return call
