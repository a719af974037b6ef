from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
import torch

from gpt2exp.errors import ConfigError, RefusedError, StorageError
from gpt2exp.models import reference
from gpt2exp.models.upstream import UPSTREAM, cached_path
from gpt2exp.verbs import audit

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def no_upstream(tmp_path, monkeypatch):
    """A machine without upstream's file."""
    monkeypatch.setenv("GPT2EXP_CACHE", str(tmp_path / "empty"))


def test_the_committed_documents_are_what_the_verb_writes(tmp_path, no_upstream, capsys):
    assert audit.main(["model=gpt2", "--write", str(tmp_path / "docs")]) == 0
    output = capsys.readouterr().out
    for name in (audit.ARCHITECTURE_FILE, audit.MATRICES_FILE):
        written = tmp_path / "docs" / name
        assert f"wrote {written}" in output
        assert written.read_bytes() == (DOCS / name).read_bytes(), (
            f"docs/{name} is out of date: run `gpt2exp audit model=gpt2 --write docs`"
        )


@pytest.mark.upstream
def test_the_documents_do_not_depend_on_whether_upstreams_file_is_there(tmp_path, upstream_source):
    audit.main(["model=gpt2", "--write", str(tmp_path)])
    for name in (audit.ARCHITECTURE_FILE, audit.MATRICES_FILE):
        assert (tmp_path / name).read_bytes() == (DOCS / name).read_bytes()


def test_the_csv_has_one_row_a_trace_with_its_owners(gpt2):
    rows = list(csv.DictReader(io.StringIO(audit.matrices_csv(gpt2))))
    assert len(rows) == 75
    assert sum(row["unique"] == "yes" for row in rows) == 74
    assert sum(row["matrix_optimizer_owner"] == "hidden matrix" for row in rows) == 72
    assert {row["adamw_owner"] for row in rows} == {"adamw decay"}
    by_name = {row["trace"]: row for row in rows}
    assert by_name["lm_head"]["stored_in"] == "transformer.wte.weight"
    assert by_name["lm_head"]["matrix_optimizer_owner"] == "auxiliary"
    key = by_name["L03_W_K"]
    assert (key["stored_in"], key["row_start"], key["row_stop"], key["shape"], key["parameters"]) == (
        "transformer.h.3.attn.c_attn.weight", "768", "1536", "768x768", "589824",
    )  # fmt: skip


def test_printing_shows_the_counts_and_writes_nothing(tmp_path, monkeypatch, no_upstream, capsys):
    monkeypatch.chdir(tmp_path)
    assert audit.main(["model=gpt2"]) == 0
    output = capsys.readouterr().out
    for fact in (
        "124,439,808",
        "transformer.h.{0..11}.attn.c_attn.weight",
        "2304x768",
        "84,934,656",
        "(tied)",
    ):
        assert fact in output
    assert list(tmp_path.iterdir()) == []


def test_without_upstreams_file_it_says_whose_figures_these_are(no_upstream, capsys):
    audit.main(["model=gpt2"])
    output = capsys.readouterr().out
    assert "reference GPT's inventory" in output
    assert str(cached_path()) in output
    assert UPSTREAM.sha256 not in output.replace(str(cached_path()), "")


@pytest.mark.upstream
def test_with_upstreams_file_it_is_built_and_its_hash_printed(upstream_source, capsys):
    audit.main(["model=gpt2"])
    output = capsys.readouterr().out
    assert f"Checked against {upstream_source.path}" in output
    assert f"SHA256 {UPSTREAM.sha256}" in output


def test_a_wrong_model_file_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("print('no')\n")
    with pytest.raises(RefusedError, match=r"mine\.py: SHA256 found"):
        audit.main(["model=gpt2", f"model.path={tmp_path / 'mine.py'}"])


def test_a_model_without_biases_is_audited_and_described(model_config, tmp_path):
    model = model_config(n_layer=1, bias=False)
    assert audit.check(model) == "Checked against the reference GPT."
    audit.write_documents(tmp_path, model)
    text = (tmp_path / audit.ARCHITECTURE_FILE).read_text()
    assert "without biases" in text
    assert UPSTREAM.sha256 not in text
    assert ".bias" not in text


def test_every_kind_of_difference_is_found(model_config):
    model = model_config()
    with torch.device("meta"):
        module = reference.GPT(model)
        assert audit.differences(model, module) == []
        wider = audit.differences(model_config(vocab_size=300), module)
        deeper = audit.differences(model_config(n_layer=3), module)
        unbiased = audit.differences(model_config(bias=False), module)
        module.lm_head.weight = torch.nn.Parameter(torch.empty(256, 64))
        untied = audit.differences(model, module)
    assert "transformer.wte.weight 300x64 is missing" in wider
    assert "transformer.wte.weight 256x64 is not expected" in wider
    assert "transformer.h.2.mlp.c_proj.bias 64 is missing" in deeper
    assert "transformer.ln_f.bias 64 is not expected" in unbiased
    assert untied == ["lm_head.weight 256x64 is not expected"]


def test_a_model_that_differs_from_its_inventory_is_refused(model_config, monkeypatch):
    smaller = model_config(n_layer=1)
    with torch.device("meta"):
        module = reference.GPT(smaller)
    monkeypatch.setattr(reference, "GPT", lambda model: module)
    with pytest.raises(RefusedError, match=r"audit: .*transformer\.h\.1\.ln_1\.weight 64 is missing"):
        audit.check(model_config())


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, model_config):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write into"):
        audit.write_documents(tmp_path / "file", model_config())


@pytest.mark.parametrize("arguments", [["--wriet", "docs"], ["--write"], ["model=gpt2", "--write"]])
def test_options_it_does_not_have_are_configuration_errors(arguments):
    with pytest.raises(ConfigError, match="see gpt2exp audit --help"):
        audit.main(arguments)


def test_overrides_may_come_after_the_option(tmp_path, capsys):
    audit.main(["--write", str(tmp_path), "model.n_layer=3", "seed=1"])
    assert "transformer.h.{0..2}.ln_1.weight" in capsys.readouterr().out
    audit.main(["model.n_layer=3", "--write", str(tmp_path), "seed=1"])
    assert "transformer.h.{0..2}.ln_1.weight" in (tmp_path / audit.ARCHITECTURE_FILE).read_text()


def test_help_names_the_files(capsys):
    with pytest.raises(SystemExit) as caught:
        audit.main(["--help"])
    assert caught.value.code == 0
    assert audit.MATRICES_FILE in capsys.readouterr().out
