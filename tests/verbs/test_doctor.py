"""doctor downloads nothing and says what is there, what is missing and where it belongs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from gpt2exp.verbs import doctor


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refused(*args, **kwargs):
        raise AssertionError("doctor must not use the network")

    monkeypatch.setattr("socket.create_connection", refused)
    monkeypatch.setattr("urllib.request.urlopen", refused)


def test_a_missing_model_file_is_named_with_its_place_and_its_hash(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("GPT2EXP_CACHE", str(tmp_path))
    assert doctor.main([]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "upstream model" in line)
    assert line.startswith("missing") and str(tmp_path) in line
    assert "757d0cea0d48cbc4c7d7d70371f955d49cdf3a7cfb4c87701a720c2fe0905c34" in line


def test_a_damaged_model_file_is_broken(monkeypatch, tmp_path, capsys):
    from gpt2exp.models.upstream import cached_path

    monkeypatch.setenv("GPT2EXP_CACHE", str(tmp_path))
    cached_path().parent.mkdir(parents=True)
    cached_path().write_text("print('not a GPT')")
    assert doctor.main([]) == 3
    assert "broken   upstream model" in capsys.readouterr().out


def test_a_missing_package_is_broken(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "REQUIRED", ("torch", "no-such-package"))
    assert doctor.main([]) == 3
    assert "no-such-package" in capsys.readouterr().out


def test_it_reports_versions_devices_disk_tokenizer_and_extras(capsys):
    doctor.main([])
    out = capsys.readouterr().out
    for subject in ("python", "torch", "cpu", "GPT-2 vocabulary", "disk, current folder", "disk, cache", "extra bpe"):
        assert subject in out


def test_what_is_required_is_what_pip_installs():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]}
    assert set(doctor.REQUIRED) == names
    assert set(doctor.EXTRAS) <= set(project["optional-dependencies"])
