"""From paths to a written report, and what to say about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gpt2exp.config import Design
from gpt2exp.errors import StorageError
from gpt2exp.report.assess import assess
from gpt2exp.report.build import publish
from gpt2exp.report.figures import figures
from gpt2exp.report.findings import Findings
from gpt2exp.report.sentences import explain, explain_judgement
from gpt2exp.report.tuning import explain_tuning, tune


def publish_report(
    paths: Sequence[Path], target: Path, allow_pooling: Sequence[str], say: Callable[[str], None]
) -> Findings:
    """Assess, draw and write; warnings, the verdict and the page's path are said.

    Raises:
        Gpt2ExpError: nothing to report on, something damaged, or the disk refused.
    """
    findings = assess(paths, allow_pooling)
    try:
        target.mkdir(parents=True, exist_ok=True)
        written = publish(findings, figures(findings), target)
    except OSError as error:
        raise StorageError(f"{target}: cannot write the report: {error}") from None
    for line in findings.warnings:
        say(line)
    for line in spoken(findings):
        say(line)
    say(f"wrote {written[0]} (and {len(written) - 1} more files)")
    return findings


def spoken(findings: Findings) -> list[str]:
    """What a terminal is told: the primary endpoint's difference and interval, the verdicts; of a sweep the best."""
    if findings.complete and findings.design is Design.sweep:
        return explain_tuning(tune(findings.runs))
    primary = [comparison for e in findings.endpoints if e.primary for comparison in e.comparisons]
    lines = [line for comparison in primary for line in explain(comparison)[:2]]
    return [*lines, *(explain_judgement(findings.judgement) if findings.judgement is not None else ())]
