"""Figures of a report: what is drawn, what is a gap, what is never pooled, and equal bytes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.text import Text

from gpt2exp.errors import StorageError
from gpt2exp.report import figures
from gpt2exp.report.curve_figures import COLORS, counted, isolated, unit_of
from gpt2exp.report.findings import CurvePoint, Difference, EndpointFinding, Findings, Foreign, Kind, Requested
from gpt2exp.report.runs import Run
from gpt2exp.report.statistics import compare, summarize
from gpt2exp.spectral import plots

ARMS = ("muonclip", "adamw")
FALL = {0: 6.0, 2: 5.0, 4: 4.0, 6: 3.6, 8: 3.3, 10: 3.2}
SUMMARY = "run,step,tokens,estimator_version,metric,median\n"


def make_run(arm, seed, shift=0.0, losses=FALL, status="complete", path=None):
    values = {step: None if y is None else y + shift for step, y in losses.items()}
    rows = [
        {"step": s, "tokens": 100 * s, "val_loss": y, "token_error": 0.5 + shift, "target_tokens": 8}
        for s, y in values.items()
    ]
    metrics = [{"step": s, "tokens": 100 * s, "loss": 5.0 - s / 10} for s in range(1, 11)]
    timing = [{"step": s, "attempt": 1, "update": 1.5} for s in range(11)]
    record = {"arm": arm, "seed": seed, "status": status, "training": {"schedule": {"num_steps": 10}}}
    return Run(path or Path(f"{arm}_{seed}"), record, {}, metrics, rows, [], timing)


def protocol(runs, seeds=(1, 2, 3), comparable=True, **more):
    """Findings of a protocol; without `comparable` nothing is compared."""
    status = {(run.arm, run.seed): run.status for run in runs}
    asked = [Requested("", arm, seed, status.get((arm, seed), "absent"), 0, 10) for seed in seeds for arm in ARMS]
    endpoints = ()
    if comparable:
        arms = [
            summarize(arm, {run.seed: run.final("val_loss") for run in runs if run.arm == arm}, seeds) for arm in ARMS
        ]
        comparison = compare("final_val_loss", *arms, unit="nats a token")
        endpoints = (EndpointFinding("final_val_loss", "nats a token", True, tuple(arms), (comparison,)),)
    plan = {"declared": {"arms": list(ARMS), "target_val_loss": more.pop("target", None)}}
    return Findings(
        Kind.protocol, "t", Path(), tuple(runs), plan, tuple(asked), comparable=comparable, endpoints=endpoints, **more
    )  # fmt: skip


@pytest.fixture
def six():
    shifts = {1: -0.02, 2: -0.04, 3: -0.06}
    return [make_run(arm, seed, shift * (arm == "muonclip")) for seed, shift in shifts.items() for arm in ARMS]


def texts(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def title(figure):
    return figure.get_suptitle()


def drawn(axis, color):
    """Heights of the lines of that colour, thinnest first."""
    lines = sorted((one for one in axis.lines if one.get_color() == color), key=lambda one: one.get_linewidth())
    return [[float(y) for y in line.get_ydata()] for line in lines]


def test_the_figures_of_a_complete_protocol(six):
    found = figures.figures(protocol(six, target=3.28))
    assert list(found) == ["loss_by_tokens", "loss_by_time", "paired_differences", "token_error_by_tokens"]
    assert not any("incomplete" in title(figure) for figure in found.values())
    assert texts(found["loss_by_tokens"]) == [
        "muonclip (3 seeds)", "adamw (3 seeds)", "thin: one seed; thick: mean over seeds",
        "lowest to highest of 3 seeds (no interval)", "target 3.28",
    ]  # fmt: skip
    assert "target 3.28" not in texts(found["token_error_by_tokens"])
    assert found["loss_by_time"].axes[-1].get_xlabel() == "Wall time (seconds)"


def test_a_thin_line_a_seed_and_their_mean_in_the_colour_of_the_arm(six):
    axis = figures.figures(protocol(six))["loss_by_tokens"].axes[0]
    *thin, thick = drawn(axis, COLORS[0])
    assert len(thin) == 3 and thick == pytest.approx([y - 0.04 for y in FALL.values()])
    assert thin[0] == pytest.approx([y - 0.02 for y in FALL.values()])
    bands = [band.get_paths()[0].vertices for band in axis.collections]
    assert len(bands) == 2 and {round(float(y), 9) for x, y in bands[0] if x == 1000} == {3.14, 3.18}


def test_arms_differ_in_colour_and_in_line_style(six):
    lines = figures.figures(protocol(six))["loss_by_tokens"].legends[0].get_lines()[:2]
    assert [line.get_color() for line in lines] == list(COLORS[:2])
    assert lines[0].get_linestyle() != lines[1].get_linestyle()


def test_an_arm_keeps_its_colour_when_the_other_one_is_missing(six):
    only = [run for run in six if run.arm == "adamw"]
    figure = figures.figures(protocol(only, comparable=False))["loss_by_tokens"]
    assert figure.legends[0].get_lines()[0].get_color() == COLORS[1]


def test_an_incomplete_protocol_says_so_and_bands_complete_runs_only(six):
    runs = [*six[:3], make_run("adamw", 2, losses={0: 6.0, 2: 5.0}, status="stopped")]
    found = figures.figures(protocol(runs, comparable=False))
    assert "paired_differences" not in found
    assert all("(incomplete: 3 of 6 runs complete)" in title(figure) for figure in found.values())
    axis = found["loss_by_tokens"].axes[0]
    assert len(axis.collections) == 1 and len(drawn(axis, COLORS[1])) == 2
    assert "lowest to highest of 2 seeds (no interval)" in texts(found["loss_by_tokens"])


def test_one_seed_has_no_band(six):
    figure = figures.figures(protocol(six[:2], seeds=(1,)))["loss_by_tokens"]
    assert texts(figure) == ["muonclip (1 seed)", "adamw (1 seed)"] and not figure.axes[0].collections


def test_runs_that_may_not_be_pooled_have_no_band_unless_it_was_demanded(six):
    differ = (Difference("training", "data.corpus", {"x": ("a",), "y": ("b",)}),)
    refused = figures.figures(protocol(six, comparable=False, differences=differ))["loss_by_tokens"]
    assert not refused.axes[0].collections and len(drawn(refused.axes[0], COLORS[0])) == 3
    assert figures.figures(protocol(six, differences=differ))["loss_by_tokens"].axes[0].collections


def test_the_same_seed_twice_has_no_band(six):
    figure = figures.figures(protocol([six[0], six[0], six[2]], comparable=False))["loss_by_tokens"]
    assert not figure.axes[0].collections


def test_unrelated_runs_are_drawn_one_by_one_and_never_pooled(six):
    found = figures.figures(Findings(Kind.runs, "t", Path(), (six[0], six[2])))
    assert texts(found["loss_by_tokens"]) == ["muonclip, seed 1 (muonclip_1)", "muonclip, seed 2 (muonclip_2)"]
    assert not found["loss_by_tokens"].axes[0].collections
    first, second = found["loss_by_tokens"].legends[0].get_lines()
    assert first.get_color() == second.get_color() and first.get_linestyle() != second.get_linestyle()


def test_one_run_shows_its_training_loss_too(six):
    found = figures.figures(Findings(Kind.run, "t", Path(), (six[0],)))
    assert texts(found["loss_by_tokens"]) == ["muonclip, seed 1 (muonclip_1)", "training loss, smoothed"]
    assert texts(found["token_error_by_tokens"]) == ["muonclip, seed 1 (muonclip_1)"]
    stopped = replace(six[0], record={**six[0].record, "status": "stopped"})
    figure = figures.figures(Findings(Kind.run, "t", Path(), (stopped,)))["loss_by_tokens"]
    assert title(figure).endswith("(incomplete: 0 of 1 runs complete)")


def test_losses_that_are_not_finite_are_gaps_and_lone_points_are_marked():
    losses = {s: None if s in (2, 6) else 5.0 for s in range(11)}
    run = make_run("adamw", 1, losses=losses)
    axis = figures.figures(Findings(Kind.runs, "t", Path(), (run,)))["loss_by_tokens"].axes[0]
    (heights,) = drawn(axis, COLORS[0])
    assert [i for i, y in enumerate(heights) if math.isnan(y)] == [2, 6]
    assert isolated([1.0, math.nan, 1.0, math.nan, 1.0, 1.0]) == [0, 2] and isolated([]) == []


def test_a_run_whose_every_loss_is_not_finite_has_no_figure_of_it():
    run = make_run("adamw", 1, losses=dict.fromkeys(range(5)))
    assert list(figures.figures(Findings(Kind.runs, "t", Path(), (run,)))) == ["token_error_by_tokens"]


def test_nothing_to_show():
    empty = make_run("adamw", 1, losses={})
    assert figures.figures(Findings(Kind.runs, "t", Path(), (empty,))) == {}
    assert figures.figures(Findings(Kind.runs, "t", Path(), ())) == {}


CURVE = Foreign("published", "x", "AdamW", tuple(CurvePoint(s, 100 * s, 7.0 - s / 10) for s in (0, 5, 10, 60)))


def test_a_foreign_curve_is_dashed_grey_under_its_label_and_ends_where_the_runs_do(six):
    found = figures.figures(protocol(six, foreign=(CURVE,)))
    (line,) = [one for one in found["loss_by_tokens"].axes[0].lines if one.get_color() == "0.35"]
    assert [float(x) for x in line.get_xdata()] == [0, 500, 1000] and line.get_linestyle() == "--"
    assert texts(found["loss_by_tokens"])[-1] == "published"
    assert "published" not in texts(found["loss_by_time"])  # it has no times
    assert not [one for one in found["token_error_by_tokens"].axes[0].lines if one.get_color() == "0.35"]


def test_a_log_alone_is_drawn_to_its_end():
    found = figures.figures(Findings(Kind.runs, "t", Path(), (), foreign=(CURVE,)))
    assert list(found) == ["loss_by_tokens"]
    assert [float(x) for x in found["loss_by_tokens"].axes[0].lines[0].get_xdata()][-1] == 6000


def test_the_second_half_is_shown_at_its_own_scale(six):
    whole, late = figures.figures(protocol(six))["loss_by_tokens"].axes
    assert whole.get_ylim()[1] > 6 and late.get_ylim()[1] < 4
    low, high = late.get_ylim()
    assert low < 3.14 and late.get_xlim()[0] < 600 < 1000 < late.get_xlim()[1] and high > 3.8
    few = figures.figures(Findings(Kind.runs, "t", Path(), (make_run("a", 1, losses={0: 6.0, 10: 3.0}),)))
    assert len(few["loss_by_tokens"].axes) == 1


def test_paired_differences_are_a_dot_a_seed_the_mean_and_its_interval(six):
    figure = figures.figures(protocol(six))["paired_differences"]
    (axis,) = figure.axes
    assert axis.get_title() == "final validation loss, n = 3 (primary endpoint)\nmuonclip - adamw"
    assert axis.get_xlabel() == "difference (nats a token)\nleft of 0: muonclip is lower"
    assert [label.get_text() for label in axis.get_yticklabels()] == ["seed 1", "seed 2", "seed 3", "mean, 95 % t"]
    zero, *dots, interval, middle = axis.lines
    assert list(zero.get_xdata()) == [0, 0]
    assert [float(dot.get_xdata()[0]) for dot in dots] == pytest.approx([-0.02, -0.04, -0.06])
    half = 4.302652729911275 * 0.02 / math.sqrt(3)
    assert [float(x) for x in interval.get_xdata()] == pytest.approx([-0.04 - half, -0.04 + half])
    assert float(middle.get_xdata()[0]) == pytest.approx(-0.04)


def test_one_pair_has_a_mean_without_interval_and_says_why(six):
    (axis,) = figures.figures(protocol(six[:2], seeds=(1,)))["paired_differences"].axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["seed 1", "mean"]
    assert "no interval: one pair has no spread" in axis.get_xlabel() and "n = 1" in axis.get_title()


def test_a_pair_without_a_value_leaves_dots_and_no_mean(six):
    six[3] = make_run("adamw", 2, losses={**FALL, 10: None})
    (axis,) = figures.figures(protocol(six))["paired_differences"].axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["seed 1", "seed 2", "seed 3"]
    assert len(axis.lines) == 3  # the line of zero and two dots
    assert "incomplete, so no mean: seed 2: adamw is not finite" in axis.get_xlabel().replace("\n", " ")


def with_alpha(folder, seed, lines):
    path = folder / f"seed{seed}"
    path.mkdir()
    (path / "spectra_summary.csv").write_text(SUMMARY + lines)
    return make_run("muonclip", seed, path=path)


def test_alpha_is_the_recorded_median_of_the_clipped_fits(tmp_path):
    rows = (
        "r,0,0,fast 1,clip_alpha,4.5\nr,0,0,fast 1,raw_alpha,9.0\n"
        "r,5,500,fast 1,clip_alpha,\nr,10,1000,fast 1,clip_alpha,3.5\n"
    )
    runs = [with_alpha(tmp_path, 1, rows), with_alpha(tmp_path, 2, rows.replace("3.5", "2.5")), make_run("adamw", 1)]
    figure = figures.figures(protocol(runs, comparable=False))["alpha_by_tokens"]
    assert "fast 1" in title(figure) and texts(figure)[-1] == "2 ≤ α ≤ 6"
    first, second, middle = drawn(figure.axes[0], COLORS[0])
    assert first[0] == 4.5 and math.isnan(first[1]) and (first[2], second[2], middle[2]) == (3.5, 2.5, 3.0)


def test_alphas_of_two_estimators_are_two_figures(tmp_path):
    runs = [
        with_alpha(tmp_path, s, f"r,0,0,{who},clip_alpha,3.0\n")
        for s, who in ((1, "fast 1"), (2, "weightwatcher 0.7.7"))
    ]
    found = figures.figures(protocol(runs, comparable=False))
    assert {"alpha_by_tokens", "alpha_by_tokens_2"} < set(found)
    assert "weightwatcher 0.7.7" in title(found["alpha_by_tokens_2"]).replace("\n", " ")


@pytest.mark.parametrize(
    "text",
    [
        f"{SUMMARY}r,x,0,fast 1,clip_alpha,3.0\n",
        f"{SUMMARY}r,0,0,fast 1,clip_alpha,?\n",
        f"{SUMMARY}r,0,0,fast 1,clip_alpha\n",
        "step\n1\n",
    ],
)
def test_a_damaged_table_is_refused_with_the_command_that_mends_it(text, tmp_path):
    run = with_alpha(tmp_path, 1, "")
    (run.path / "spectra_summary.csv").write_text(text)
    with pytest.raises(StorageError, match=r"spectra_summary.csv: damaged .*gpt2exp spectra"):
        figures.figures(protocol([run], comparable=False))


def test_equal_findings_give_equal_bytes(six, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "DPI", 40)
    made = [plots.save(figures.figures(protocol(six, target=3.28, foreign=(CURVE,))), tmp_path / name) for name in "ab"]
    assert len(made[0]) == 8 and [path.read_bytes() for path in made[0]] == [path.read_bytes() for path in made[1]]


def test_text_is_large_enough_for_a_phone(six):
    """At 380 pixels of width no text is smaller than 9 pixels."""
    for figure in figures.figures(protocol(six, foreign=(CURVE,))).values():
        figure.draw_without_rendering()
        sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
        assert min(sizes) * 380 / figure.get_figwidth() / 72 >= 9


def test_units_of_the_axes():
    assert [unit_of("seconds", x)[1] for x in (299, 300, 7200)] == [
        f"Wall time ({n})" for n in ("seconds", "minutes", "hours")
    ]
    assert [counted(x, 0) for x in (0, 500, 2500, 2.5e6, 1.024e10)] == ["0", "500", "2.5k", "2.5M", "10.24B"]
