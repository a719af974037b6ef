"""The page: whole and offline, in the order a sceptic reads, and safe from what users call their arms."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import made
import pytest
import run_dirs
from matplotlib.figure import Figure

from gpt2exp.report.assess import assess
from gpt2exp.report.build import publish
from gpt2exp.report.findings import PairCheck
from gpt2exp.report.page import escape_markdown, render_html, render_markdown
from gpt2exp.spectral import plots

SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'
FIGURES = {"loss_by_tokens": SVG, "alpha_by_tokens_2": SVG, "something_new": b"\x89PNG\r\n"}
FILES = {"loss_by_tokens": "report/figures/loss_by_tokens.png"}
VOID = {"meta", "link", "img", "br", "hr"}
HOSTILE = '<script>alert("1")</script> | *x* [y](z) `q`'


class Reader(HTMLParser):
    """Checks that tags nest; collects text that is shown, ids, links, and tags with their attributes."""

    def __init__(self, html):
        super().__init__()
        self.open, self.text, self.tags, self.problems = [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append((tag, self.getpos()))

    def handle_data(self, data):
        if data.strip() and self.open[-1] not in ("style", "title"):
            self.text.append(" ".join(data.split()))

    def all(self, name):
        return [attributes[name] for _, attributes in self.tags if name in attributes]


def read(findings, figures=FIGURES):
    return Reader(render_html(findings, figures))


def shown(findings):
    return "\n".join(read(findings).text)


@pytest.mark.parametrize("case", made.CASES)
def test_html_is_well_formed_and_loads_nothing(case):
    page = read(made.CASES[case]())
    assert page.problems == [] and page.open == []
    assert len(set(page.all("id"))) == len(page.all("id"))
    assert {href[1:] for href in page.all("href") if href.startswith("#")} <= set(page.all("id"))
    assert all(source.startswith("data:") for source in page.all("src"))
    assert all(href.startswith(("#", "data:")) for href in page.all("href"))
    assert not {tag for tag, _ in page.tags} & {"script", "iframe", "object", "embed", "form"}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "url(" not in render_html(made.CASES[case](), {}) and "@import" not in render_html(made.CASES[case](), {})
    assert [text for text in page.text if re.search(r"(?<!\()\b(nan|None)\b", text)] == []


@pytest.mark.parametrize("case", made.CASES)
def test_html_can_be_read_by_screen_readers(case):
    page = read(made.CASES[case]())
    tags = [tag for tag, _ in page.tags]
    assert tags.count("caption") == tags.count("table") and tags.count("h1") == tags.count("main") == 1
    assert all(attributes.get("scope") for tag, attributes in page.tags if tag == "th")
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")


@pytest.mark.parametrize("case", made.CASES)
def test_markdown_tables_have_equal_column_counts(case):
    text = render_markdown(made.CASES[case](), FILES)
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert blocks
    for block in blocks:
        lines = block.splitlines()
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1, block
        assert re.fullmatch(r"\|(?:-+:?\|)+", lines[1])
    assert not re.search(r"(?<!\()\b(nan|None)\b", text)


def test_names_of_arms_are_text_and_never_markup():
    findings = made.protocol(names={"adamw": HOSTILE}, warnings=(HOSTILE,), title=HOSTILE)
    page = read(findings)
    assert page.problems == [] and "script" not in [tag for tag, _ in page.tags]
    assert HOSTILE in page.text
    text = render_markdown(findings, FILES)
    assert "<script" not in text and escape_markdown(HOSTILE) in text
    assert r"\| \*x\* \[y\](z) \`q\`" in text


def test_markdown_leaves_names_readable_and_puts_line_breaks_away():
    assert escape_markdown("final_val_loss _x_ a\n| b") == r"final_val_loss \_x\_ a \| b"


def test_a_sceptic_reads_warnings_verdict_fairness_figures_tables_methods_identity_completeness():
    findings = made.protocol(warnings=("Pooled by override: x.",), foreign=(made.foreign_curve(),))
    text = render_html(findings, FIGURES)
    order = [
        "Pooled by override", 'id="verdict"', 'id="fairness"', 'id="figures"', 'id="measurements"', 'id="reference"',
        'id="methods"', 'id="identity"', 'id="completeness"',
    ]  # fmt: skip
    places = [text.index(mark) for mark in order]
    assert places == sorted(places)


def test_the_verdict_stands_first_and_says_what_three_pairs_cannot():
    text = shown(made.protocol())
    assert "Primary endpoint, final validation loss: not judged: n=3 pairs" in text
    assert "no exact p below 0.25 is possible" in text and "6 pairs could" in text
    assert "2 secondary endpoints, p-values adjusted by Holm" in text


def test_an_incomplete_protocol_says_so_first_and_gives_no_statistic():
    findings = made.protocol(absent=[("adamw", 44)], stopped=[("muonclip", 44)], warnings=("gated: x",))
    page, text = read(findings), shown(findings)
    alarm = text.index("Incomplete: 4 of 6 requested runs complete. No paired statistic is computed")
    assert alarm < text.index("gated: x") < text.index("No verdict: the protocol is incomplete")
    assert ("div", {"class": "alarm", "role": "alert"}) in page.tags
    assert "seed=44/arm0 (stopped), seed=44/adamw (absent)" in text
    for statistic in ("p = ", "t interval", "mean difference", "What 3 pairs"):
        assert statistic not in text
    assert "> **Incomplete: 4 of 6" in render_markdown(findings, FILES)


def test_a_warning_that_says_incomplete_is_not_said_twice():
    findings = made.protocol(absent=[("adamw", 44)], warnings=("Incomplete: run 6 is missing.",))
    assert shown(findings).lower().count("incomplete:") == 1


def test_one_run_and_unrelated_runs_get_no_verdict_and_no_pooling():
    alone, several = shown(made.single_run()), shown(made.unrelated_runs())
    assert "This is one run: there is nothing to compare it with" in alone
    assert "shown side by side and never pooled: no mean, no test, no verdict" in several
    for text in (alone, several):
        assert not [word for word in ("Primary endpoint", "p = ", "t interval", "mean of") if word in text]


def test_runs_that_may_not_be_compared_say_where_the_reason_is():
    broken = tuple(PairCheck(seed, ("a", "b"), None, None, ("threads: 1 in a, 2 in b",)) for seed in (42, 43))
    text = shown(made.protocol(comparable=False, pairs=broken, judgement=None))
    assert "No verdict: these runs may not be compared" in text
    assert "Not every pair holds: see seeds 42, 43 in the ledger." in text and "threads: 1 in a, 2 in b" in text


def test_foreign_curves_alone_are_a_page_too():
    findings = made.Findings(made.Kind.runs, "main.log", made.FOLDER, (), foreign=(made.foreign_curve(),))
    text = shown(findings)
    assert "1 curve from elsewhere; no run of gpt2exp." in text and "Not a run of gpt2exp, and pooled with none" in text
    assert "9,0092" not in text and "9.0092" in text


def test_long_tables_are_folded_and_the_statistics_never():
    many = {arm: {seed: 3.2 + seed / 1000 + i / 50 for seed in range(20)} for i, arm in enumerate(("a", "b"))}
    html = render_html(made.protocol(many), {})
    folded = re.findall(r"<summary>([^<(]*)", html)
    assert any(title.startswith("Results by run") for title in folded)
    assert not any(title.startswith("Paired comparisons") for title in folded)


def test_figures_are_on_white_paper_with_titles_known_or_made_from_the_stem():
    page = read(made.protocol())
    alts = page.all("alt")
    assert alts[0].startswith("Validation loss against training tokens.") and alts[1].startswith("Layer spectra.")
    assert alts[2].startswith("Something new.")
    kinds = [source.partition(";")[0] for source in page.all("src")]
    assert kinds == ["data:image/svg+xml", "data:image/svg+xml", "data:image/png"]


@pytest.fixture
def coarse(monkeypatch):
    monkeypatch.setattr(plots, "DPI", 30)


def drawn():
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1], [1, 0])
    return {"loss_by_tokens": figure}


def test_publishing_twice_gives_the_same_bytes_and_names_every_file(coarse, tmp_path):
    findings = made.protocol(foreign=(made.foreign_curve(),))
    paths = publish(findings, drawn(), tmp_path)
    first = {path: path.read_bytes() for path in paths}
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(paths)
    assert {path: path.read_bytes() for path in publish(findings, drawn(), tmp_path)} == first
    names = [path.relative_to(tmp_path).as_posix() for path in paths]
    assert names[:2] == ["report.html", "report.md"]
    assert {"report/runs.csv", "report/curve_1.csv", "report/figures/loss_by_tokens.svg"} <= set(names)
    for target in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", (tmp_path / "report.md").read_text()):
        assert (tmp_path / target).is_file()


def test_a_later_report_leaves_no_table_of_an_earlier_one_and_touches_nothing_else(coarse, tmp_path):
    publish(made.protocol(foreign=(made.foreign_curve(),)), drawn(), tmp_path)
    (tmp_path / "report/notes.csv").write_text("mine\n")
    publish(made.protocol(absent=[("adamw", 44)]), {}, tmp_path)
    left = {path.name for path in (tmp_path / "report").rglob("*") if path.is_file()}
    assert not left & {"comparisons.csv", "pairs.csv", "curve_1.csv", "loss_by_tokens.svg"}
    assert {"notes.csv", "runs.csv", "completeness.csv"} <= left


def test_the_page_does_not_depend_on_where_the_report_is_read_from():
    findings = made.protocol()
    moved = [dataclasses.replace(run, path=made.Path("/elsewhere") / run.path) for run in findings.runs]
    there = dataclasses.replace(findings, folder=made.Path("/elsewhere") / made.FOLDER, runs=tuple(moved))
    assert render_html(there, FIGURES) == render_html(findings, FIGURES)


TABLE = {
    run_dirs.MUONCLIP: {42: (5.5, 4.5, 3.25), 43: (5.5, 4.4, 3.30), 44: (5.5, 4.6, 3.20)},
    run_dirs.ADAMW: {42: (5.5, 4.6, 3.50), 43: (5.5, 4.5, 4.10), 44: (5.5, 4.6, 3.48)},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A protocol on disk, named by a relative path as a user would."""
    monkeypatch.chdir(tmp_path)
    return run_dirs.write_protocol(made.Path("outputs/by_hand"), TABLE, secondary=("steps_to_target",))


def test_a_protocol_on_disk_becomes_a_page_with_every_cell_from_its_files(folder):
    page = read(assess([folder]))
    text = "\n".join(page.text)
    assert "3.2500" in text and "4.1000" in text and "not reached by step 4" in text
    assert "In each of 3 seeds the arms began with the same weights" in text
    assert "What 3 pairs say, and cannot say" in text and "Holm-adjusted p" in text
    assert not [word for word in page.text if re.search(r"\b(nan|None)\b", word)]


def test_a_run_that_cannot_be_read_is_a_dash_and_not_a_zero(folder):
    (folder / "seed=44" / run_dirs.ADAMW / "run.json").write_text("{")
    page = render_markdown(assess([folder]), {})
    assert page.count("Incomplete: 5 of 6 requested runs complete") == 1
    rows = [line for line in page.splitlines() if line.startswith("| 44 | adamw\\_nano") or "| 44 | adamw_nano" in line]
    assert any("| damaged | - |" in line for line in rows) and not any(re.search(r"\| 0( /|\s*\|)", r) for r in rows)


def test_single_runs_of_a_protocol_stand_side_by_side_under_their_own_names(folder):
    runs = [folder / "seed=42" / arm for arm in TABLE]
    text = render_markdown(assess(runs), {})
    assert "2 runs that no plan joins" in text and "## Requested and done" not in text
    assert "| muonclip_nano | 42 | muonclip_nano | complete | 4 / 4 | 3.2500 |" in text
    alone = render_markdown(assess(runs[:1]), {})
    assert "This is one run" in alone and "3.2500" in alone
