"""Tables of spectra: known values, honest labels, and failures that stay visible without becoming numbers."""

from __future__ import annotations

import csv
import io
import math

import pytest

from gpt2exp.errors import StorageError
from gpt2exp.spectral.records import Fit, Spectrum
from gpt2exp.spectral.tables import (
    CORRELATION_COLUMNS,
    METRICS,
    SPECTRA_COLUMNS,
    SUMMARY_COLUMNS,
    RunFacts,
    correlation_rows,
    csv_files,
    csv_text,
    snapshot_grid,
    spearman,
    spectra_rows,
    summary_rows,
)

RUN = RunFacts("adamw_seed7", "adamw", 7)


def spectrum(raw, clipped, stable_rank=2.0):
    """A spectrum with the given alphas; None is a fit that failed."""
    fits = [Fit.failed("too few eigenvalues") if a is None else Fit(a, 0.1, 1.0, 0.05, 0.2, 9) for a in (raw, clipped)]
    return Spectrum((8, 4), [1.0] * 4, *fits, 1.0, stable_rank, stable_rank, 0.9, 4, 3, 1.1, -1)


def row(matrix, spectrum):
    block, _, kind = matrix.removeprefix("L").partition("_") if matrix.startswith("L") else (None, "", matrix)
    return {"matrix": matrix, "kind": kind, "block": block and int(block), **spectrum.row()}


def result(step, spectra, label="weightwatcher 0.7.7", backend="weightwatcher"):
    return {
        "step": step, "tokens": 100 * step, "backend": backend, "backend_label": label,
        "snapshot_sha256": f"{step:064d}", "spectra": [row(name, one) for name, one in spectra.items()],
    }  # fmt: skip


def tracked(step, token_error, source="evaluation", snapshot=True):
    return {
        "step": step, "tokens": 100 * step, "token_error": token_error, "target_tokens": 50, "source": source,
        "snapshot_sha256": f"{step:064d}" if snapshot else None,
    }  # fmt: skip


def alphas(step, *clipped):
    return result(step, {f"L{i:02d}_W_Q": spectrum(9.0, alpha) for i, alpha in enumerate(clipped)})


def metric(rows, name, step=0):
    return next(row for row in rows if row["metric"] == name and row["step"] == step)


def parsed(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_spectra_are_one_row_a_step_and_matrix():
    rows = spectra_rows(RUN, [alphas(20, 3.0), alphas(0, 5.0, 4.0)])
    assert [(r["step"], r["matrix"], r["clip_alpha"]) for r in rows] == [
        (0, "L00_W_Q", 5.0), (0, "L01_W_Q", 4.0), (20, "L00_W_Q", 3.0),
    ]  # fmt: skip
    own = {name: rows[2][name] for name in ("run", "arm", "seed", "tokens", "spectral_estimator", "estimator_version")}
    assert own == {
        "run": "adamw_seed7", "arm": "adamw", "seed": 7, "tokens": 2000,
        "spectral_estimator": "weightwatcher", "estimator_version": "weightwatcher 0.7.7",
    }  # fmt: skip
    assert set(rows[0]) == set(SPECTRA_COLUMNS)


@pytest.mark.parametrize(
    ("alpha", "label"),
    [(1.99, "over-trained"), (2.0, ""), (4.0, ""), (6.0, ""), (6.01, "under-trained"), (None, "")],
)
def test_the_label_follows_the_clipped_alpha_and_a_failed_fit_has_none(alpha, label):
    assert spectra_rows(RUN, [alphas(0, alpha)])[0]["label"] == label


def test_a_failed_fit_is_empty_cells_and_a_reason():
    cells = parsed(csv_files(RUN, [result(0, {"L00_W_Q": spectrum(None, None)})], [])["spectra.csv"])[0]
    assert cells["raw_status"] == cells["clip_status"] == "too few eigenvalues"
    assert {cells[f"{fit}_{name}"] for fit in ("raw", "clip") for name in ("alpha", "D", "xmin", "sigma")} == {""}
    assert cells["stable_rank"] == "2.0"


def test_minus_one_never_passes_for_an_alpha():
    bad = result(0, {"L00_W_Q": spectrum(3.0, -1.0), "L01_W_Q": spectrum(3.0, 4.0)})
    bad["spectra"][0]["clip_D"] = -1.0
    files = csv_files(RUN, [bad], [])
    cells = parsed(files["spectra.csv"])[0]
    assert (cells["clip_alpha"], cells["clip_D"], cells["label"]) == ("", "", "")
    assert cells["clip_status"] == "alpha is not above 1" and cells["raw_alpha"] == "3.0"
    summary = {r["metric"]: r for r in parsed(files["spectra_summary.csv"])}
    assert summary["clip_alpha"]["min"] == "4.0" and summary["clip_D"]["min"] == "0.05"
    assert summary["clip_alpha"]["excluded"] == "alpha is not above 1: 1"


def test_a_status_of_success_without_a_number_is_no_success():
    stored = alphas(0, 3.0)
    stored["spectra"][0]["clip_alpha"] = None
    assert metric(summary_rows(RUN, [stored], []), "clip_alpha")["excluded"] == "alpha is not finite: 1"


def test_summary_of_known_values():
    found = metric(summary_rows(RUN, [alphas(0, 2.0, 3.0, 7.0, None)], []), "clip_alpha")
    assert (found["n"], found["mean"], found["median"], found["min"], found["max"]) == (3, 4.0, 3.0, 2.0, 7.0)
    assert found["sd"] == pytest.approx(math.sqrt(7.0), rel=1e-15)  # (4 + 1 + 9) / (3 - 1)
    assert (found["n_excluded"], found["excluded"]) == (1, "too few eigenvalues: 1")


def test_summary_is_one_row_a_step_and_metric():
    rows = summary_rows(RUN, [alphas(10, 3.0), alphas(0, 3.0)], [])
    assert [(r["step"], r["metric"]) for r in rows] == [(step, name) for step in (0, 10) for name in METRICS]
    assert all(tuple(r) == SUMMARY_COLUMNS for r in rows)


def test_one_matrix_has_no_standard_deviation():
    found = metric(summary_rows(RUN, [alphas(0, 3.0)], []), "clip_alpha")
    assert (found["n"], found["mean"], found["sd"]) == (1, 3.0, None)


def test_where_all_fits_failed_only_counts_remain():
    rows = summary_rows(RUN, [alphas(0, None, None)], [tracked(0, 0.5)])
    found = metric(rows, "clip_alpha")
    assert [found[name] for name in ("n", "mean", "median", "sd", "min", "max")] == [0, None, None, None, None, None]
    assert (found["n_excluded"], found["excluded"]) == (2, "too few eigenvalues: 2")
    assert metric(rows, "raw_alpha")["n"] == 2 and metric(rows, "stable_rank")["n"] == 2


def test_reasons_are_counted_most_frequent_first():
    spectra = {f"L{i:02d}_W_O": Spectrum.unfit((8, 4), why) for i, why in enumerate(("zero", "not finite", "zero"))}
    rows = summary_rows(RUN, [result(0, spectra)], [])
    for name in ("clip_alpha", "stable_rank"):
        assert metric(rows, name)["excluded"] == "zero: 2; not finite: 1"


def test_a_matrix_that_a_step_lacks_is_counted_there():
    found = metric(summary_rows(RUN, [alphas(0, 3.0, 5.0), alphas(10, 4.0)], []), "clip_alpha", 10)
    assert (found["n"], found["mean"], found["excluded"]) == (1, 4.0, "no row: 1")


def test_embeddings_are_listed_but_not_summarised():
    both = [result(0, {"L00_W_Q": spectrum(3.0, 3.0), "wte": spectrum(50.0, 50.0)})]
    assert [r["matrix"] for r in spectra_rows(RUN, both)] == ["L00_W_Q", "wte"]
    assert metric(summary_rows(RUN, both, []), "clip_alpha")["max"] == 3.0


def test_token_errors_join_on_the_step_and_missing_steps_stay_missing():
    tracking = [tracked(0, 0.9), tracked(10, 0.5), tracked(20, None, "probe")]
    rows = summary_rows(RUN, [alphas(0, 3.0), alphas(20, 3.0), alphas(30, 3.0)], tracking)
    joined = {r["step"]: (r["token_error"], r["target_tokens"], r["token_error_source"]) for r in rows}
    assert joined == {0: (0.9, 50, "evaluation"), 20: (None, 50, "probe"), 30: (None, None, None)}


def test_spectra_of_other_weights_than_the_token_error_are_refused():
    stale = {**alphas(10, 3.0), "snapshot_sha256": "f" * 64}
    with pytest.raises(StorageError, match=r"step 10 are of other weights .* ffffffffffff"):
        summary_rows(RUN, [stale], [tracked(10, 0.5)])
    assert summary_rows(RUN, [stale], [tracked(10, 0.5, snapshot=False)])[0]["token_error"] == 0.5


@pytest.mark.parametrize(("label", "backend"), [("fast 1", "fast"), ("weightwatcher 0.7.6", "weightwatcher")])
@pytest.mark.parametrize("table", [lambda run, results, _: spectra_rows(run, results), summary_rows, correlation_rows])
def test_estimators_and_their_versions_are_never_pooled(table, label, backend):
    other = {**alphas(10, 3.0), "backend": backend, "backend_label": label}
    with pytest.raises(StorageError, match=rf"weightwatcher 0\.7\.7 \(1 steps from 0\); {label} \(1 steps from 10\)"):
        table(RUN, [alphas(0, 3.0), other], [])


def test_repeated_steps_and_matrices_are_refused():
    with pytest.raises(StorageError, match="step 0 are there twice"):
        spectra_rows(RUN, [alphas(0, 3.0), alphas(0, 4.0)])
    twice = alphas(0, 3.0)
    twice["spectra"] *= 2
    with pytest.raises(StorageError, match="L00_W_Q is there twice"):
        spectra_rows(RUN, [twice])
    with pytest.raises(StorageError, match=r"tracking\.jsonl has step 0 twice"):
        summary_rows(RUN, [alphas(0, 3.0)], [tracked(0, 0.5), tracked(0, 0.5)])


def test_spearman_shares_ranks_among_ties():
    # ranks 1, 2.5, 2.5, 4 and 1, 4, 2.5, 2.5: covariance 2.25 over variance 4.5
    assert spearman([1.0, 2.0, 2.0, 3.0], [10.0, 90.0, 40.0, 40.0]) == (pytest.approx(0.5, rel=1e-14), "")
    assert spearman([1.0, 2.0, 3.0], [9.0, 4.0, 1.0]) == (pytest.approx(-1.0, rel=1e-14), "")


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([1, 2], [3, 4], "n < 3"),
        ([], [], "n < 3"),
        ([1, 1, 1], [1, 2, 3], "constant x"),
        ([1, 2, 3], [5, 5, 5], "constant y"),
        ([0, 0, 0], [1, 1, 1], "constant x and y"),
    ],
)
def test_an_undefined_correlation_says_why(x, y, reason):
    assert spearman(x, y) == (None, reason)


def test_correlation_of_values_and_of_first_differences():
    results = [alphas(s, a) for s, a in ((0, 99.0), (10, 6.0), (20, 5.0), (30, 3.0), (40, 2.0))]
    tracking = [tracked(0, 0.0), tracked(10, 0.9), tracked(20, 0.5), tracked(30, 0.4, "probe"), tracked(40, 0.2)]
    values, changes = correlation_rows(RUN, results, tracking)
    assert tuple(values) == CORRELATION_COLUMNS
    assert (values["form"], values["n"], values["first_step"], values["last_step"]) == ("values", 4, 10, 40)
    assert values["spearman"] == pytest.approx(1.0, rel=1e-14)
    assert values["token_error_sources"] == "evaluation: 3; probe: 1"
    # alpha changes -1, -2, -1 (ranks 2.5, 1, 2.5), errors -.4, -.1, -.2 (ranks 1, 3, 2): -1.5 / sqrt(1.5 * 2)
    assert (changes["form"], changes["n"]) == ("first differences", 3)
    assert changes["spearman"] == pytest.approx(-1.5 / math.sqrt(3.0), rel=1e-14)


def test_correlation_takes_the_median_over_matrices():
    results = [
        alphas(10 * i, low, middle, 50.0) for i, (low, middle) in enumerate([(1.1, 4), (3, 4), (2, 5), (1, 3)], 1)
    ]
    tracking = [tracked(10 * i, error) for i, error in enumerate([0.4, 0.41, 0.5, 0.3], 1)]
    # medians 4, 4, 5 and, its -1 being no fit, (3 + 50) / 2: ranks 1.5, 1.5, 3, 4 against 2, 3, 4, 1
    assert correlation_rows(RUN, results, tracking)[0]["spearman"] == pytest.approx(
        -1.5 / math.sqrt(4.5 * 5), rel=1e-12
    )


def test_no_difference_is_taken_across_a_missing_step():
    results = [alphas(s, a) for s, a in ((10, 6.0), (20, 5.0), (30, None), (40, 3.0), (60, 2.0))]
    tracking = [tracked(s, s / 100) for s in (10, 20, 30, 40, 50, 60)] + [tracked(45, 0.3, "probe", snapshot=False)]
    values, changes = correlation_rows(RUN, results, tracking)
    assert values["n"] == 4
    assert (changes["n"], changes["spearman"], changes["reason"]) == (1, None, "n < 3")
    assert (changes["first_step"], changes["last_step"]) == (10, 20)
    assert snapshot_grid(results, tracking) == [10, 20, 30, 40, 50, 60]


def test_one_snapshot_leaves_the_correlation_empty_and_explained():
    cells = parsed(csv_files(RUN, [alphas(0, 3.0)], [tracked(0, 0.5)])["spectra_correlations.csv"])
    assert [(r["n"], r["spearman"], r["reason"], r["first_step"]) for r in cells] == [("0", "", "n < 3", "")] * 2


def test_without_results_there_are_headers_only():
    files = csv_files(RUN, [], [tracked(0, 0.5)])
    assert files["spectra.csv"] == ",".join(SPECTRA_COLUMNS) + "\n"
    assert files["spectra_summary.csv"] == ",".join(SUMMARY_COLUMNS) + "\n"
    assert files["spectra_correlations.csv"] == ",".join(CORRELATION_COLUMNS) + "\n"


def test_columns_of_the_randomisation_come_last():
    traps = alphas(10, 3.0)
    traps["spectra"][0]["num_traps"] = 2
    cells = parsed(csv_files(RUN, [alphas(0, 3.0), traps], [])["spectra.csv"])
    assert list(cells[0])[-1] == "num_traps" and [r["num_traps"] for r in cells] == ["", "2"]


def test_csv_text_is_exact():
    rows = [{"a": 0.1, "b": None}, {"a": math.nan, "c": 'say "x", y', "b": 3}, {"a": 1e-30, "b": True}]
    assert csv_text(rows, ["b"]) == 'b,a,c\n,0.1,\n3,,"say ""x"", y"\nTrue,1e-30,\n'


def test_the_order_of_the_results_does_not_matter():
    results, tracking = (
        [alphas(s, 3.0 + s, 4.0) for s in (0, 10, 20, 30)],
        [tracked(s, 1 / (s + 1)) for s in (0, 10, 20)],
    )
    assert csv_files(RUN, results, tracking) == csv_files(RUN, results[::-1], tracking[::-1])
