"""Figures of spectra: failures are gaps, titles say whose they are, equal input gives equal bytes."""

from __future__ import annotations

import itertools
import subprocess
import sys

import matplotlib
import numpy as np
import pytest

from gpt2exp.errors import ConfigError, StorageError
from gpt2exp.spectral import plots
from gpt2exp.spectral.plots import KIND_COLORS, NO_FIT_COLOR, figures, save
from gpt2exp.spectral.records import Fit, Spectrum
from gpt2exp.spectral.tables import RunFacts

RUN = RunFacts("muon_seed7", "muon", 7)
EIGENVALUES = np.arange(1.0, 21.0) ** 2


def spectrum(alpha, removed=0):
    raw = Fit(alpha + 1, 4.0, 400.0, 0.1, 0.5, 19)
    clipped = Fit(alpha, 9.0, float(EIGENVALUES[-1 - removed]), 0.08, 0.4, 18 - removed, removed)
    return Spectrum((20, 40), EIGENVALUES, raw, clipped)


FAILED = Spectrum.unfit((20, 40), "degenerate")


@pytest.fixture
def coarse(monkeypatch):
    """Small pictures, where only their equality matters."""
    monkeypatch.setattr(plots, "DPI", 50)


def result(step, spectra):
    rows = [{"matrix": f"L{b:02d}_{kind}", "kind": kind, "block": b, **s.row()} for (b, kind), s in spectra.items()]
    return {
        "step": step, "tokens": 64 * step, "backend": "weightwatcher", "backend_label": "weightwatcher 0.7.7",
        "snapshot_sha256": f"{step:064d}", "spectra": rows,
    }  # fmt: skip


def full(step, failed=()):
    places = itertools.product(range(2), KIND_COLORS)
    return result(step, {at: FAILED if at in failed else spectrum(2.0 + at[0]) for at in places})


def tracked(step, error, source="evaluation"):
    return {
        "step": step, "tokens": 64 * step, "token_error": error, "target_tokens": 9, "source": source,
        "snapshot_sha256": f"{step:064d}",
    }  # fmt: skip


RESULTS = [full(0, {(0, "W_O"), (1, "W_O")}), full(5, {(0, "W_Q")}), full(10)]
STORED = {(step, "L00_W_K"): EIGENVALUES for step in (0, 10)}


def panel(figure, kind):
    return next(axis for axis in figure.axes if axis.get_title().split()[:1] == [kind])


def curve(axis, style):
    """Heights of the wide line of that style: a median over blocks."""
    line = next(one for one in axis.lines if one.get_linestyle() == style and one.get_linewidth() > 1)
    return [float(y) for y in line.get_ydata()]


def texts(axis):
    return axis.get_legend_handles_labels()[1]


def test_the_figures_of_a_run():
    drawn = figures(RUN, RESULTS, STORED, None, None)
    assert list(drawn) == ["alpha_by_step", "alpha_histogram", "alpha_heatmap", "esd_L00_W_K_step_000010"]
    for figure in drawn.values():
        assert "muon, seed 7; spectra by weightwatcher 0.7.7" in figure.get_suptitle()
        assert all(axis.get_xlabel() or axis.get_ylabel() for axis in figure.axes if not axis.get_title())


def test_medians_over_blocks_with_gaps_where_fits_failed():
    figure = figures(RUN, RESULTS, {})["alpha_by_step"]
    query, output = panel(figure, "W_Q"), panel(figure, "W_O")
    assert curve(query, "-") == [2.5, 3.0, 2.5] and curve(query, "--") == [3.5, 4.0, 3.5]
    assert query.get_title() == "W_Q  (1 of 6 clipped fits failed)"
    assert np.isnan(curve(output, "-")).tolist() == [True, False, False]
    assert [line.get_color() for line in output.lines[1:]] == [KIND_COLORS["W_O"]] * 4
    assert "Step (of 64 tokens)" in {axis.get_xlabel() for axis in figure.axes}


def test_a_snapshot_without_spectra_is_a_gap():
    tracking = [tracked(step, 0.5) for step in (0, 5, 10)]
    drawn = figures(RUN, [RESULTS[0], RESULTS[2]], {}, tracking=tracking)
    assert np.isnan(curve(panel(drawn["alpha_by_step"], "W_K"), "-")).tolist() == [False, True, False]
    cells = panel(drawn["alpha_heatmap"], "W_K").images[0].get_array()
    assert np.ma.getmaskarray(np.ma.masked_invalid(cells)).tolist() == [[False, True, False]] * 2


def test_the_heat_map_is_blocks_by_steps_with_grey_for_no_fit():
    axis = panel(figures(RUN, RESULTS, {})["alpha_heatmap"], "W_Q")
    cells = np.ma.masked_invalid(axis.images[0].get_array())
    assert cells.filled(0).tolist() == [[2.0, 0.0, 2.0], [3.0, 3.0, 3.0]]
    assert axis.images[0].get_cmap()(np.ma.masked)[:3] == pytest.approx([float(NO_FIT_COLOR)] * 3)


def test_histograms_count_successful_fits_only():
    clipped, raw = figures(RUN, RESULTS, {}, step=5)["alpha_histogram"].axes
    assert texts(clipped) == ["step 0 (n = 10 of 12)", "step 5 (n = 11 of 12)", "step 10 (n = 12 of 12)"]
    outlines = [patch for patch in raw.patches if patch.get_label() in texts(raw)]
    assert [patch.get_data().values.sum() for patch in outlines] == [10, 11, 12]


def test_the_density_shows_both_fits_their_cuts_and_what_was_removed():
    results = [result(0, {(0, "W_K"): spectrum(2.5, removed=3)})]
    (axis,) = figures(RUN, results, STORED)["esd_L00_W_K_step_000000"].axes
    lines = dict(zip(texts(axis), axis.get_legend_handles_labels()[0], strict=True))
    assert lines["3 largest removed by clipping"].get_xdata().tolist() == [324.0, 361.0, 400.0]
    verticals = {name: line.get_xdata()[0] for name, line in lines.items() if name.startswith("xm")}
    assert verticals == {"xmin raw = 4": 4.0, "xmin clipped = 9": 9.0, "xmax clipped = 289": 289.0}
    fit = next(line for name, line in lines.items() if name.startswith("clipped: α = 2.500 ± 0.400"))
    assert (fit.get_xdata()[[0, -1]]).tolist() == pytest.approx([9.0, 289.0])
    assert fit.get_ydata()[0] == pytest.approx(15 / 20 * 1.5 / 9.0)


def test_the_density_points_hold_all_the_mass():
    (axis,) = figures(RUN, [result(0, {(0, "W_K"): spectrum(2.5)})], STORED)["esd_L00_W_K_step_000000"].axes
    points = axis.lines[0]
    ratio = (400.0 * 1.001 / 0.999) ** (1 / 21)  # 2.6 decades of 8 bins
    widths = points.get_xdata() * (ratio**0.5 - ratio**-0.5)
    assert (points.get_ydata() * widths).sum() == pytest.approx(1.0)


def test_a_failed_fit_is_named_in_the_density():
    values = np.array([0.0, 0.0, 1.0, 2.0])
    unfit = Spectrum((4, 4), values, Fit.failed("degenerate"), Fit.failed("degenerate"))
    (axis,) = figures(RUN, [result(0, {(0, "W_K"): unfit})], {(0, "L00_W_K"): values})["esd_L00_W_K_step_000000"].axes
    assert texts(axis) == [
        "4 eigenvalues, 2 near zero not drawn", "raw: no fit (degenerate)", "clipped: no fit (degenerate)",
    ]  # fmt: skip


def test_a_spectrum_of_zeros_can_be_drawn():
    values = np.zeros(4)
    zero = Spectrum((4, 4), values, Fit.failed("zero"), Fit.failed("zero"))
    (axis,) = figures(RUN, [result(0, {(0, "W_K"): zero})], {(0, "L00_W_K"): values})["esd_L00_W_K_step_000000"].axes
    assert texts(axis) == ["4 eigenvalues, none above 0", "raw: no fit (zero)", "clipped: no fit (zero)"]


def test_a_run_of_which_every_fit_failed_can_be_drawn_and_saved(tmp_path, coarse):
    results = [result(step, {(0, "W_Q"): FAILED}) for step in (0, 5)]
    drawn = figures(RUN, results, {}, tracking=[tracked(5, 0.5)])
    assert list(drawn) == ["alpha_by_step", "alpha_histogram", "alpha_heatmap"]
    assert [text.get_text() for text in panel(drawn["alpha_by_step"], "W_Q").texts] == ["no successful fit"]
    assert [text.get_text() for text in panel(drawn["alpha_by_step"], "W_K").texts] == ["no such matrix"]
    assert len(save(drawn, tmp_path)) == 6


def test_token_error_against_alpha_leaves_out_step_0_and_names_the_sources():
    tracking = [tracked(0, 0.9), tracked(5, 0.5), tracked(10, 0.3, "probe")]
    figure = figures(RUN, RESULTS, {}, tracking=tracking)["alpha_token_error"]
    assert "n = 2, Spearman's undefined (n < 3)" in figure.get_suptitle()
    assert texts(figure.axes[0]) == ["token error from the evaluation (n = 1)", "token error from the probe (n = 1)"]


def test_unknown_choices_are_refused_with_what_there_is():
    with pytest.raises(ConfigError, match="step 7 has no spectra; steps that have: 0, 5, 10"):
        figures(RUN, RESULTS, STORED, step=7)
    with pytest.raises(ConfigError, match="matrix L09_W_K is not among the spectra of step 10: L00_W_Q, "):
        figures(RUN, RESULTS, STORED, matrix="L09_W_K")
    with pytest.raises(StorageError, match="eigenvalues of L00_W_K at step 5 are not stored"):
        figures(RUN, RESULTS, STORED, "L00_W_K", 5)


def test_eigenvalues_that_are_not_those_of_the_fit_are_refused():
    with pytest.raises(StorageError, match="L00_W_K at step 0 are damaged: found 19, expected 20"):
        figures(RUN, RESULTS, {(0, "L00_W_K"): EIGENVALUES[1:]}, step=0)


def test_no_results_no_figures(tmp_path):
    assert figures(RUN, [], {}) == {} and save({}, tmp_path) == []


def test_saved_files_are_the_same_every_time_and_carry_no_date(tmp_path, coarse):
    tracking = [tracked(step, 1 / (1 + step)) for step in (0, 5, 10)]
    first = save(figures(RUN, RESULTS, STORED, tracking=tracking), tmp_path / "one")
    drawn = figures(RUN, RESULTS, STORED, tracking=tracking)
    save({"alpha_heatmap": drawn["alpha_heatmap"]}, tmp_path / "two")
    second = save(drawn, tmp_path / "two")
    assert [path.suffix for path in first] == [".png", ".svg"] * 5
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == sorted(path.name for path in first)
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name
    for svg in first[1::2]:
        assert b"<dc:date>" not in svg.read_bytes()


def test_a_png_is_300_dpi(tmp_path):
    png = save({"x": figures(RUN, RESULTS, {})["alpha_histogram"]}, tmp_path)[0].read_bytes()
    width, at = int.from_bytes(png[16:20], "big"), png.index(b"pHYs") + 4
    assert width == 12 * 300 and int.from_bytes(png[at : at + 4], "big") == round(300 / 0.0254)


def test_settings_of_the_process_neither_change_nor_matter(tmp_path, coarse):
    def draw():
        return {"histogram": figures(RUN, RESULTS, {})["alpha_histogram"]}

    plain = save(draw(), tmp_path / "plain")
    with matplotlib.rc_context({"lines.linewidth": 9.0, "font.size": 30.0, "svg.hashsalt": "other"}):
        before = dict(matplotlib.rcParams)
        styled = save(draw(), tmp_path / "styled")
        assert dict(matplotlib.rcParams) == before
    assert [path.read_bytes() for path in plain] == [path.read_bytes() for path in styled]


def test_drawing_never_loads_pyplot():
    code = "import sys, gpt2exp.spectral.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
