"""What a report's page says and in which order; `page` only sets it in HTML or Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpt2exp.config import Design
from gpt2exp.report import methods
from gpt2exp.report.cells import words
from gpt2exp.report.contrasts import by_comparison, who_was_first
from gpt2exp.report.curves import REFERENCE_SOURCE, reference_sentences
from gpt2exp.report.findings import Findings, Foreign, Kind
from gpt2exp.report.provenance import (
    completeness,
    environment,
    identity_tables,
    not_pooled,
    pair_ledger,
    plan_table,
    tuning,
)
from gpt2exp.report.sentences import SCOPE, counted, explain, explain_judgement, explain_reaching
from gpt2exp.report.statistics import Comparison
from gpt2exp.report.table import Table
from gpt2exp.report.tables import (
    by_arm,
    by_pair,
    by_run,
    comparisons,
    crossings,
    evaluations,
    foreign_curve,
    reach_comparisons,
    reaching,
)
from gpt2exp.report.tuning import explain_tuning, tune

LONG = 16
"""Rows beyond which a table is folded."""
CAPTIONS = {
    "loss_by_tokens": ("Validation loss against training tokens", "All runs, by the tokens they had been trained on."),
    "loss_by_time": (
        "Validation loss against wall time",
        "Recorded seconds of the kept trajectory, evaluations included.",
    ),
    "paired_differences": ("Differences within pairs", "First arm minus second; what the statistics are made of."),
    "token_error_by_tokens": ("Token error against training tokens", "Share of targets not predicted first."),
    "alpha_by_tokens": ("Layer spectra", "Median power-law exponent α over the matrices of all blocks."),
}


@dataclass(frozen=True)
class Text:
    """A paragraph; `lead` for the sentence that a section is about."""

    text: str
    lead: bool = False
    kind: str = "text"


@dataclass(frozen=True)
class Points:
    """A list of sentences, folded under `title` where it is long."""

    items: tuple[str, ...]
    title: str = ""
    folded: bool = False
    kind: str = "points"


@dataclass(frozen=True)
class Shown:
    """A table on the page."""

    table: Table
    folded: bool = False
    kind: str = "table"


@dataclass(frozen=True)
class Picture:
    """A figure, by its file stem."""

    stem: str
    title: str
    caption: str
    kind: str = "figure"


Block = Text | Points | Shown | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    key: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page:
    """All of a report: `alarms` are what keeps it from being one of a whole protocol, `warnings` everything else."""

    title: str
    summary: str
    alarms: tuple[str, ...]
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]


def lay_out(findings: Findings, stems: Iterable[str]) -> Page:
    """The page of these findings with these figures."""
    stems = tuple(stems)
    made = (
        Section("verdict", "Result", tuple(_verdict(findings))),
        Section(
            "fairness",
            "Was it fair?" if findings.kind is Kind.protocol else "May they be compared?",
            tuple(_fairness(findings)),
        ),
        Section("figures", "Figures", tuple(_picture(stem) for stem in stems)),
        Section("measurements", "Measurements", _shown(_measurements(findings))),
        Section("reference", "Curves from elsewhere", tuple(_reference(findings))),
        Section("methods", "How each number was computed", tuple(_methods(findings, bool(stems)))),
        Section("identity", "What exactly was run", _shown(_identity(findings))),
        Section("completeness", "Requested and done", _shown([completeness(findings)])),
    )
    alarms, warnings = _warnings(findings)
    return Page(findings.title, summary(findings), alarms, warnings, tuple(s for s in made if s.blocks))


def all_tables(findings: Findings) -> list[Table]:
    """Every table, on the page or not, in the page's order."""
    curves = [foreign_curve(findings, foreign, i) for i, foreign in enumerate(findings.foreign, 1)]
    fairness = (pair_ledger(findings), not_pooled(findings), tuning(findings))
    found = (*_measurements(findings), *curves, *fairness, *_identity(findings), completeness(findings))
    return [table for table in found if table is not None]


def summary(findings: Findings) -> str:
    """What the page is about, in a line."""
    if not findings.runs and not findings.requested:
        return f"{counted(len(findings.foreign), 'curve')} from elsewhere; no run of gpt2exp."
    seeds = dict.fromkeys(
        run.seed for run in (findings.runs if findings.kind is not Kind.protocol else findings.requested)
    )
    parts = [
        f"arm{'s' if len(findings.arms) > 1 else ''} {', '.join(findings.arms)}",
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
    ]
    if findings.kind is Kind.protocol:
        done = sum(run.complete for run in findings.requested)
        return f"Protocol: {'; '.join(parts)}; {done} of {counted(len(findings.requested), 'requested run')} complete."
    kind = "One run" if findings.kind is Kind.run else f"{counted(len(findings.runs), 'run')} that no plan joins"
    return f"{kind}: {'; '.join(parts)}."


def incomplete(findings: Findings) -> str | None:
    """What is missing from a protocol, or None."""
    if findings.kind is not Kind.protocol or findings.complete:
        return None
    missing = [f"{run.folder} ({run.status})" for run in findings.requested if not run.complete]
    done = len(findings.requested) - len(missing)
    return (
        f"Incomplete: {done} of {counted(len(findings.requested), 'requested run')} complete. No paired statistic is "
        f"computed, and no verdict given. Not complete: {', '.join(missing) or 'nothing was requested'}."
    )


def _warnings(findings: Findings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    own, given = incomplete(findings), [w for w in findings.warnings if not w.lower().startswith("incomplete")]
    stated = [w for w in findings.warnings if w.lower().startswith("incomplete")]
    return tuple(stated or filter(None, [own])), tuple(given)


def _verdict(findings: Findings) -> list[Block]:
    reason = no_verdict(findings)
    if reason:
        search = findings.complete and findings.design is Design.sweep
        found = tuple(explain_tuning(tune(findings.runs))) if search else ()
        return [Text(reason, lead=True), *([Points(found, "The search, arm by arm")] if found else [])]
    assert findings.judgement is not None
    first, *others = explain_judgement(findings.judgement)
    primary = [found for endpoint, found in comparisons(findings) if endpoint.primary]
    blocks: list[Block] = [Text(first, lead=True)]
    blocks += [Points(tuple(explain(c)), _says(c, alone=len(primary) == 1)) for c in primary]
    if others:
        blocks.append(Points(tuple(others), "Secondary endpoints"))
    blocks += [
        Points(tuple(line for line in explain(c) if line != SCOPE), f"In words: {c.endpoint}, {c.direction}", True)
        for endpoint, c in comparisons(findings)
        if not endpoint.primary
    ]
    reached = [(axis, c) for axis, c in reach_comparisons(findings)]
    return [*blocks, *(Points(tuple(explain_reaching(c)), f"In words: {c.endpoint}", True) for _, c in reached)]


def _says(c: Comparison, *, alone: bool) -> str:
    if c.status != "complete":
        return f"What the pairs say: {c.direction}"
    what = f"What {counted(c.n, 'pair')} say{'s' if c.n == 1 else ''}, and cannot say"
    return what if alone else f"{what}: {c.direction}"


def no_verdict(findings: Findings) -> str:
    """Why the page gives no verdict; empty where it does."""
    if findings.kind is Kind.run:
        return "This is one run: there is nothing to compare it with, so there is no verdict and no spread."
    if not findings.runs and not findings.requested:
        return "There is no run of gpt2exp here: the curves below are shown as they are, and nothing is judged."
    if findings.kind is Kind.runs:
        return (
            "No plan joins these runs, so they are shown side by side and never pooled: no mean, no test, no verdict. "
            "What differs between them is listed under what exactly was run."
        )
    if not findings.complete:
        return "No verdict: the protocol is incomplete. What is there is shown run by run."
    if findings.design is Design.sweep:
        return "A search for settings: its runs choose what to compare, and are not themselves a comparison."
    if not findings.comparable and (findings.differences or any(not pair.holds for pair in findings.pairs)):
        return "No verdict: these runs may not be compared. The reasons are listed in the next section."
    return "" if findings.judgement else "No verdict: nothing was declared to be compared."


def _fairness(findings: Findings) -> list[Block]:
    blocks: list[Block] = [Text(text) for text in [_pairs_hold(findings)] if text]
    blocks += _shown([pair_ledger(findings), not_pooled(findings)])
    if findings.design is Design.sweep:
        return blocks
    if findings.confounds:
        blocks.append(Points(findings.confounds, "Confounds"))
    elif findings.kind is Kind.protocol and len(findings.arms) > 1:
        blocks.append(Text("The configurations show no confound beyond what the optimizers themselves are."))
    return [*blocks, *_shown([tuning(findings)])]


def _pairs_hold(findings: Findings) -> str:
    broken = [str(pair.seed) for pair in findings.pairs if not pair.holds]
    if broken:
        return f"Not every pair holds: see seed{'s' if len(broken) > 1 else ''} {', '.join(broken)} in the ledger."
    if all(len(pair.arms) < 2 for pair in findings.pairs):
        return ""
    seeds = "one seed" if len(findings.pairs) == 1 else f"each of {len(findings.pairs)} seeds"
    return f"In {seeds} the arms began with the same weights and saw the same data in the same order: digests below."


def _picture(stem: str) -> Picture:
    known = next((key for key in CAPTIONS if stem == key or stem.startswith(f"{key}_")), None)
    title, caption = CAPTIONS[known] if known else (words(stem)[:1].upper() + words(stem)[1:], "")
    return Picture(stem, title, caption)


def _shown(tables: Sequence[Table | None]) -> tuple[Shown, ...]:
    return tuple(Shown(table, len(table.rows) > LONG) for table in tables if table is not None)


def _measurements(findings: Findings) -> list[Table | None]:
    compared = (by_run(findings), by_comparison(findings), by_pair(findings), by_arm(findings))
    return [*compared, who_was_first(findings), reaching(findings), crossings(findings), evaluations(findings)]


def _reference(findings: Findings) -> list[Block]:
    blocks: list[Block] = []
    for index, foreign in enumerate(findings.foreign, 1):
        blocks += [Points(_notes(findings, foreign), foreign.label), *_shown([foreign_curve(findings, foreign, index)])]
    return blocks


def _notes(findings: Findings, foreign: Foreign) -> tuple[str, ...]:
    fixed = reference_sentences(findings.runs) if foreign.source == REFERENCE_SOURCE and findings.runs else ()
    origin = f"Not a run of gpt2exp, and pooled with none. Optimizer: {foreign.optimizer}. Source: {foreign.source}."
    return tuple(dict.fromkeys([origin, *fixed, *foreign.notes]))


def _methods(findings: Findings, drawn: bool) -> list[Block]:
    runs = methods.RUNS if findings.runs else ()
    pairs = methods.PAIRS if comparisons(findings) else ()
    reached = methods.REACHING if findings.reaching and findings.kind is Kind.protocol else ()
    items = (*runs, *pairs, *reached, *(methods.FIGURES if drawn and findings.kind is Kind.protocol else ()))
    return [Points(items)] if items else []


def _identity(findings: Findings) -> list[Table | None]:
    return [plan_table(findings), *identity_tables(findings), environment(findings)]
