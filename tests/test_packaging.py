"""The same product from a wheel, an editable install and a bare checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from golden import cfg_job

from gpt2exp.config import shipped

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
SHIPPED = {"gpt2exp.conf": "conf", "gpt2exp.multirun_protocols": "multirun_protocols"}
YAML = sorted(file for folder in SHIPPED.values() for file in (ROOT / folder).rglob("*.yaml"))


def test_the_packages_listed_are_the_folders_that_exist():
    found = {".".join(file.parent.relative_to(ROOT).parts) for file in (ROOT / "gpt2exp").rglob("__init__.py")}
    assert set(SETUPTOOLS["packages"]) == found | set(SHIPPED)


def test_every_module_lies_in_a_package():
    for file in (ROOT / "gpt2exp").rglob("*.py"):
        assert (file.parent / "__init__.py").exists(), file


def test_configuration_and_protocols_ship_inside_the_package():
    assert {name: SETUPTOOLS["package-dir"][name] for name in SHIPPED} == SHIPPED
    assert SETUPTOOLS["package-data"]["gpt2exp.conf"] == ["**/*.yaml"]
    assert SETUPTOOLS["package-data"]["gpt2exp.multirun_protocols"] == ["*.yaml"]
    assert "py.typed" in SETUPTOOLS["package-data"]["gpt2exp"]


def test_the_checkout_finds_its_folders():
    assert shipped("conf") == ROOT / "conf" and shipped("multirun_protocols") == ROOT / "multirun_protocols"


@pytest.mark.parametrize("file", YAML, ids=lambda file: str(file.relative_to(ROOT)))
def test_yaml_files_are_utf8_with_unix_lines(file):
    data = file.read_bytes()
    data.decode("utf-8")
    assert b"\r" not in data and b"\t" not in data and data.endswith(b"\n") and not data.endswith(b"\n\n")


def test_the_console_script_is_main():
    assert PROJECT["project"]["scripts"] == {"gpt2exp": "gpt2exp.main:main"}


def cfg_job_of(python_path: Path, cwd: Path) -> str:
    """`--cfg job` of the package in a folder, with nothing of this checkout on the path."""
    script = f"import sys; sys.path.insert(0, {str(python_path)!r}); from gpt2exp.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "--cfg", "job"], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bare_checkout(tmp_path_factory):
    """What a clone holds, without the development install."""
    copy = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in ("gpt2exp", *SHIPPED.values()):
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def test_a_bare_checkout_composes_the_same_from_anywhere(bare_checkout, tmp_path):
    assert cfg_job_of(bare_checkout, tmp_path) == cfg_job.DEFAULT.read_text(encoding="utf-8")


def test_a_wheel_composes_the_same_from_anywhere(bare_checkout, tmp_path):
    pytest.importorskip("setuptools", minversion="77", reason="built without isolation, so without a download")
    wheels, installed, elsewhere = (tmp_path / name for name in ("wheels", "installed", "elsewhere"))
    elsewhere.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = [
        "wheel",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "-w",
        str(wheels),
        str(bare_checkout),
    ]
    subprocess.run([*pip, *build], check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(installed), str(wheel)], check=True)
    shipped_files = {str(f.relative_to(installed / "gpt2exp")) for f in (installed / "gpt2exp").rglob("*.yaml")}
    assert shipped_files == {str(file.relative_to(ROOT)) for file in YAML}
    assert (installed / "gpt2exp/py.typed").exists()
    assert {f.name for f in installed.iterdir() if f.suffix != ".dist-info"} == {"gpt2exp", "bin"}
    assert cfg_job_of(installed, elsewhere) == cfg_job.DEFAULT.read_text(encoding="utf-8")
    assert list(elsewhere.iterdir()) == []
