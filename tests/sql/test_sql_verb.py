"""`gpt2exp sql`: hands over to its commands and lists those that are there."""

from __future__ import annotations

import importlib

import pytest

from gpt2exp.verbs.sql import commands

pytestmark = pytest.mark.sql


def test_every_command_is_listed_with_what_it_does(cli):
    done = cli("sql", "--help")
    assert done.status == 0 and {"show", "attention", "bench"} == set(commands())
    for name, text in commands().items():
        assert f"  {name:<10} {text}" in done.out and text


@pytest.mark.parametrize("name", commands())
def test_every_command_answers_help_with_its_own_usage(cli, name):
    done = cli("sql", name, "--help")
    assert done.status == 0 and f"Usage: gpt2exp sql {name}" in done.out
    assert importlib.import_module(f"gpt2exp.sql_reports.{name}_command").__doc__.strip() in done.out


def test_no_command_and_a_misspelt_one_are_told_what_there_is(cli):
    assert cli("sql").problems == ["sql: which of attention, bench, show? (gpt2exp sql --help says what each does)"]
    done = cli("sql", "atention")
    assert done.status == 2
    assert done.problems == ["sql atention: there is attention, bench, show; did you mean attention?"]
