"""The statements are the reviewed ones, and the command prints them."""

from __future__ import annotations

import sys

import pytest
from golden import sql_statements

pytestmark = pytest.mark.sql

ADAMW, MUONCLIP = sql_statements.OVERRIDES


def golden(file):
    return file.read_bytes().decode("utf-8")


@pytest.mark.parametrize("file", sql_statements.OVERRIDES, ids=lambda file: file.name)
def test_statements_are_what_the_golden_file_says(file):
    again = "python tests/golden/sql_statements.py writes it again; review the diff"
    assert sql_statements.rendered(file) == golden(file), again


@pytest.mark.parametrize("file", sql_statements.OVERRIDES, ids=lambda file: file.name)
def test_the_command_prints_the_golden_file(cli, file):
    done = cli("sql", "show", *sql_statements.OVERRIDES[file])
    assert (done.status, done.out, done.err) == (0, golden(file), "")


def test_the_model_and_the_host_are_the_defaults(cli):
    assert cli("sql", "show", "optimizer=nanogpt_adamw").out == golden(ADAMW)


def test_what_is_chosen_is_shown(cli):
    done = cli("sql", "show", "optimizer=muonclip", "model.n_layer=2", "model.bias=true", "hardware=datafusion")
    assert done.status == 0, done.err
    assert "-- h1_qkv: " in done.out and "-- b_qkv: " in done.out and "-- h1_qkv: " not in golden(MUONCLIP)


def test_a_preset_keeps_what_it_chooses(cli):
    done = cli("sql", "show", "preset=nanogpt_shakespeare")
    assert (done.status, done.out, done.err) == (0, golden(ADAMW), "")


def test_reading_the_statements_needs_no_database(cli, monkeypatch):
    for name in ("ddxdb", "duckdb", "datafusion", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli("sql", "show", *sql_statements.OVERRIDES[MUONCLIP]).out == golden(MUONCLIP)


def test_hardware_without_statements_is_refused(cli):
    done = cli("sql", "show", "hardware=cpu")
    assert done.status == 2
    assert done.problems == ["sql show hardware=cpu: runs no statements; use hardware=duckdb or hardware=datafusion"]


def test_sql_lists_the_command(cli):
    assert "  show       every statement of an update" in cli("sql", "--help").out
    assert "Usage: gpt2exp sql show [overrides]" in cli("sql", "show", "--help").out
