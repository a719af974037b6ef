"""Tables of a report: what stands in which cell, what is missing, and what the CSV keeps of it."""

from __future__ import annotations

import csv
import io
import math
import re

import made
import pytest

from gpt2exp.report.build import KEYS, NUMBERED
from gpt2exp.report.cells import MISSING, amount, bounds, duration, fixed, setting
from gpt2exp.report.censoring import Bounds
from gpt2exp.report.findings import Difference, PairCheck
from gpt2exp.report.sections import all_tables


def tables(findings):
    return {table.key: table for table in all_tables(findings)}


def column(table, name):
    return [row[table.columns.index(name)] for row in table.rows]


def line(table, name):
    return next(row[1:] for row in table.rows if row[0] == name)


def rows_of(table):
    return list(csv.DictReader(io.StringIO(table.csv)))


@pytest.fixture(scope="module")
def complete():
    return tables(made.protocol())


@pytest.fixture(scope="module")
def incomplete():
    return tables(made.CASES["incomplete"]())


def test_every_run_is_a_row_with_its_loss_time_and_crossing(complete):
    runs = complete["runs"]
    assert column(runs, "seed") == ["42", "42", "43", "43", "44", "44"]
    assert column(runs, "final val loss (nats)")[:2] == ["3.2581", "3.2791"]
    assert column(runs, "steps") == ["200 / 200"] * 6
    assert column(runs, "elapsed (h:mm:ss)")[0] == "0:00:51.9"
    assert column(runs, "val loss 3.28")[3] == "not reached by step 200"
    assert column(runs, "val loss 3.28")[0].startswith("reached after step 50 and by step 100 (about 99")


def test_directories_are_named_only_where_arm_and_seed_do_not_tell_runs_apart(complete):
    assert "run" not in complete["runs"].columns
    assert column(tables(made.unrelated_runs())["runs"], "run") == ["first", "second", "third"]


def test_an_absent_run_is_a_row_of_dashes_and_a_stopped_one_shows_its_last_evaluation(incomplete):
    runs = incomplete["runs"]
    assert runs.rows[5] == ("44", "adamw", "absent", MISSING, MISSING, MISSING, MISSING, MISSING, MISSING)
    assert column(runs, "steps")[4] == "100 / 200"
    assert column(runs, "final val loss (nats)")[4] == MISSING
    assert re.fullmatch(r"3\.\d{4} at step 100", column(runs, "last val loss (nats)")[4])
    absent = rows_of(runs)[5]
    assert absent["status"] == "absent" and absent["steps"] == absent["final_val_loss"] == ""


def test_an_incomplete_protocol_has_no_paired_table_even_if_it_was_marked_comparable():
    findings = made.protocol(absent=[("adamw", 44)], comparable=True)
    assert not {"comparisons", "pairs", "first_to_target"} & set(tables(findings))


def test_paired_statistics_are_those_of_the_documented_example(complete):
    found = complete["comparisons"]
    assert line(found, "mean difference")[0] == "-0.0219"
    assert line(found, "95 % t interval")[0] == "-0.0250 to -0.0188"
    assert line(found, "paired t test")[0] == "p = 0.0011 (t = -30.29, 2 df)"
    assert line(found, "exact sign-flip test")[0] == "p = 0.25 (2 of 8 sign flips)"
    assert line(found, "floor of the exact p")[0].startswith("0.25, the smallest that 3 pairs allow; 0.05 cannot be")
    assert line(found, "minimum detectable effect")[0] == "0.00408"
    assert line(found, "Holm-adjusted p") == ("not adjusted (primary)", "p = 0.0022")
    assert line(found, "verdict") == ("not judged", "not judged")


def test_the_csv_holds_every_digit(complete):
    first = rows_of(complete["pairs"])[0]
    assert float(first["difference"]) == 3.2581 - 3.2791
    assert float(rows_of(complete["runs"])[0]["final_val_loss"]) == 3.2581
    assert len(rows_of(complete["pair_ledger"])[0]["order_sha256"]) == 64
    assert complete["pair_ledger"].rows[0][3] == made.sha("order")[:12]


def test_a_loss_that_was_not_finite_is_said_and_is_nan_in_the_csv():
    found = tables(made.CASES["diverged"]())
    assert "not finite" in column(found["runs"], "final val loss (nats)")
    assert rows_of(found["runs"])[2]["final_val_loss"] == "nan"
    assert column(found["arms"], "mean")[0] == MISSING and column(found["arms"], "seeds not finite")[0] == "43"
    assert not {"mean difference", "paired t test"} & set(column(found["comparisons"], "statistic"))
    assert "seed 43: muonclip" in line(found["comparisons"], "not computed, because")[0]


def test_one_pair_and_equal_differences_say_why_there_is_no_t_test():
    one = tables(made.CASES["one pair"]())["comparisons"]
    assert "paired t test" not in column(one, "statistic")
    assert "one pair has no spread" in line(one, "not computed, because")[0]
    assert line(one, "floor of the exact p")[0].startswith("1, the smallest that 1 pair allows")
    equal = tables(made.CASES["equal differences"]())["comparisons"]
    assert "zero variance" in line(equal, "not computed, because")[0]
    assert line(equal, "SD of the differences")[0] == "0"


def test_three_arms_are_compared_first_minus_each_other():
    found = tables(made.CASES["three arms"]())
    assert set(column(found["pairs"], "first - second")) == {"muonclip - adamw", "muonclip - sgd"}
    assert found["pairs"].columns[3:5] == ("first arm", "second arm")
    assert len(found["comparisons"].columns) == 1 + 2 * 2


def test_times_to_the_target_are_counts_and_bounds_never_an_average_of_the_lucky(complete):
    reach = complete["reaching"]
    assert column(reach, "reached") == ["3 of 3", "2 of 3", "3 of 3", "2 of 3"]
    assert column(reach, "restricted mean")[1] == "150 to 183.3 steps"
    assert column(complete["crossings"], "step")[3] == "not reached by step 200"
    assert complete["first_to_target"].rows[0][2:5] == ("3", "0", "0")


def test_identity_separates_what_is_shared_from_what_differs(complete):
    shared = {(tier, key): value for tier, key, value in complete["identity"].rows}
    assert shared["training", "schedule.num_steps"] == "200"
    assert shared["training", "model.sha256"] == MISSING and shared["training", "model.bias"] == "true"
    assert ("training", "seed") not in shared and ("training", "optimizer.lr") not in shared
    differing = {row[1]: row[2:] for row in complete["identity_differences"].rows}
    assert differing["optimizer.lr"] == ("0.02", "0.0006")
    assert differing["optimizer.betas"] == (MISSING, "0.9, 0.95")


def test_a_value_that_differs_within_an_arm_names_its_runs():
    odd = made.a_run("adamw", 43, 3.3, execution__threads=1)
    findings = made.protocol({"adamw": {42: 3.2, 44: 3.1}}, pairs=())
    findings = made.Findings(made.Kind.protocol, "t", made.FOLDER, (*findings.runs, odd))
    found = {row[1]: row[2] for row in tables(findings)["identity"].rows}
    assert found["threads"] == "2 (seed=42/arm0, seed=44/arm0); 1 (seed=43/adamw)"


def test_the_ledger_names_a_broken_pair_and_what_keeps_runs_apart():
    pairs = (PairCheck(42, ("a", "b"), made.sha("w"), None, ("training.data.order_digest: x in a, y in b",)),)
    differences = (Difference("training", "data.corpus", {made.sha("x"): ("one", "two"), "y": ("three",)}),)
    found = tables(made.protocol(comparable=False, pairs=pairs, differences=differences))
    assert found["pair_ledger"].rows[0][3:] == (MISSING, "no", "training.data.order_digest: x in a, y in b")
    assert found["differences"].rows[0] == ("training", "data.corpus", made.sha("x")[:12], "one, two")


def test_completeness_holds_asked_for_against_done(incomplete):
    assert incomplete["completeness"].rows[4:] == (
        ("seed=44/arm0", "44", "muonclip", "stopped", "100", "200", "stopped at its deadline"),
        ("seed=44/adamw", "44", "adamw", "absent", MISSING, "200", MISSING),
    )


def test_tuning_budgets_are_shown_or_said_to_be_undeclared(complete):
    assert "no tuning budget" in complete["tuning"].note and column(complete["tuning"], "trials") == [MISSING] * 2
    plan = made.plan(("muonclip", "adamw"), (42, 43, 44), tuning_trials=[5, 9], tuning_seeds=[1, 2])
    found = tables(made.protocol(plan=plan))["tuning"]
    assert found.rows == (("muonclip", "5", "1, 2"), ("adamw", "9", "1, 2"))


def test_a_foreign_curve_stands_beside_ours_at_equal_tokens_only():
    found = tables(made.CASES["foreign curve"]())["curve_1"]
    assert found.columns == ("tokens", "llm.c log main.log", "muonclip, mean of 3", "adamw, mean of 3")
    assert found.rows[-1] == ("819,200", "9.0092", "3.2586", "3.2804")
    assert len(found.rows) == 5 and len(rows_of(found)) == 9
    alone = tables(made.Findings(made.Kind.runs, "log", made.FOLDER, (), foreign=(made.foreign_curve(),)))["curve_1"]
    assert len(alone.rows) == 9 and alone.columns == ("tokens", "llm.c log main.log")


def test_unrelated_runs_are_never_averaged():
    assert not {"arms", "reaching", "comparisons", "pairs"} & set(tables(made.unrelated_runs()))


@pytest.mark.parametrize("case", made.CASES)
def test_no_cell_shows_a_placeholder_of_the_program_and_every_stem_is_known(case):
    for table in all_tables(made.CASES[case]()):
        assert NUMBERED.sub("", table.key) in KEYS
        cells = [cell for row in table.rows for cell in row]
        assert all(cells), table.key
        assert not [cell for cell in cells if re.search(r"(?<!\()\b(nan|inf|None|True|False)\b", cell)], table.key
        assert len({len(row) for row in csv.reader(io.StringIO(table.csv))}) == 1, table.key


def test_small_values_do_not_look_like_zero_and_missing_ones_do_not_look_like_values():
    assert fixed(0.0) == "0.0000" and fixed(3e-5) == "3.00e-05" and fixed(-3e-5, signed=True) == "-3.00e-05"
    assert fixed(0.02, signed=True) == "+0.0200" and fixed(None) == MISSING and fixed(math.nan) == "not finite"
    assert amount(12345.0, "steps") == "12,345" and amount(None, "steps") == MISSING
    assert duration(None) == MISSING and duration(59.94) == "0:00:59.9" and duration(59.96) == "0:01:00"
    assert duration(3 * 3600 + 61.4) == "3:01:01"
    assert bounds("step", None) == MISSING and bounds("step", Bounds(500, 500)) == "500 steps"
    assert bounds("seconds", Bounds(1, 2.25)) == "1.0 to 2.2 s"
    assert bounds("step", Bounds(500, None)) == "after 500 steps, perhaps not by the horizon"
    assert setting(None) == setting([]) == MISSING and setting(1e-8) == "1e-08" and setting(False) == "false"
