"""Where the numbers come from, as tables: pairs, identity, tuning, what was asked for, machines and versions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gpt2exp.config import Design
from gpt2exp.identity import flatten
from gpt2exp.report.assess import ABSENT, DAMAGED
from gpt2exp.report.cells import MISSING, listed, setting, short, words
from gpt2exp.report.findings import Findings, Kind
from gpt2exp.report.runs import Run
from gpt2exp.report.table import Record, Table
from gpt2exp.report.tables import label

TIERS = ("ids", "training", "measurement", "execution", "digests")
PER_SEED = ("training.seed", "digests.run", "digests.training")
"""Different for every seed by design, so they say nothing about an arm."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00")
UNREAD = (ABSENT, DAMAGED)
"""States in which nobody knows how far a run got."""
VERSIONS = ("gpt2exp", "torch", "numpy")


def pair_ledger(findings: Findings) -> Table | None:
    """Seed by seed, whether the runs began alike and saw the same data."""
    if not findings.pairs:
        return None
    return Table(
        key="pair_ledger",
        title="Pair ledger",
        columns=("seed", "arms", "initial weights (SHA256)", "data order (SHA256)", "pair holds", "problem"),
        rows=tuple(
            (str(p.seed), listed(p.arms), short(p.initial_weights), short(p.order), "yes" if p.holds else "no",
             "; ".join(p.problems) or MISSING)
            for p in findings.pairs
        ),
        note="Checked before anything was subtracted. A digest stands there only where all runs of the seed share it.",
        data=tuple(
            {"seed": p.seed, "arms": " ".join(p.arms), "initial_weights_sha256": p.initial_weights,
             "order_sha256": p.order, "holds": p.holds, "problems": "; ".join(p.problems)}
            for p in findings.pairs
        ),
    )  # fmt: skip


def not_pooled(findings: Findings) -> Table | None:
    """Keys that keep runs from being pooled, with the runs by value."""
    found = [(d, value, names) for d in findings.differences for value, names in d.values.items()]
    if not found:
        return None
    return Table(
        key="differences",
        title="What keeps these runs from being pooled",
        columns=("tier", "key", "value", "runs"),
        rows=tuple((d.tier, d.key, setting(value), listed(names)) for d, value, names in found),
        data=tuple({"tier": d.tier, "key": d.key, "value": v, "runs": " ".join(names)} for d, v, names in found),
    )


def tuning(findings: Findings) -> Table | None:
    """What each arm was given to choose its settings, as the plan declares it."""
    declared = (findings.plan or {}).get("declared", {})
    trials, seeds = declared.get("tuning_trials", ()), declared.get("tuning_seeds", ())
    if findings.kind is not Kind.protocol or len(findings.arms) < 2 or findings.design is Design.sweep:
        return None
    found = [(arm, trials[i] if i < len(trials) else None) for i, arm in enumerate(findings.arms)]
    return Table(
        key="tuning",
        title="Tuning budget",
        columns=("arm", "trials", "on seeds"),
        rows=tuple((arm, setting(count), listed(seeds) if trials else MISSING) for arm, count in found),
        note="As the plan declares it; no run can prove it."
        if trials
        else "The plan declares no tuning budget: "
        "nothing here says how each arm's settings were chosen, or with how much effort.",
        data=tuple({"arm": arm, "trials": count, "seeds": " ".join(map(str, seeds))} for arm, count in found),
    )


def completeness(findings: Findings) -> Table | None:
    """What was asked for against what was done."""
    if findings.kind is not Kind.protocol or not findings.requested:
        return None
    return Table(
        key="completeness",
        title="Requested and done",
        columns=("run", "seed", "arm", "status", "steps done", "steps requested", "reason"),
        rows=tuple(
            (r.folder, str(r.seed), r.arm, r.status, MISSING if r.status in UNREAD else f"{r.step:,}",
             MISSING if r.num_steps is None else f"{r.num_steps:,}", r.reason or MISSING)
            for r in findings.requested
        ),
        note="Complete: the whole budget, and every measurement that was due.",
        data=tuple(
            {"run": r.folder, "seed": r.seed, "arm": r.arm, "status": r.status,
             "steps": None if r.status in UNREAD else r.step, "num_steps": r.num_steps, "reason": r.reason}
            for r in findings.requested
        ),
    )  # fmt: skip


def identity_tables(findings: Findings) -> list[Table]:
    """Values that all runs share, and those that differ between arms; between runs where no plan joins them."""
    groups = _groups(findings)
    keys = sorted({key for group in groups.values() for key in group}, key=lambda key: (TIERS.index(_tier(key)), key))
    same = [key for key in keys if len({_canonical(group.get(key, [])) for group in groups.values()}) == 1]
    one = {key: next(iter(groups.values())).get(key, []) for key in same}
    differing = [key for key in keys if key not in one]
    return [table for table in (_differing(findings, groups, differing), _shared(findings, one)) if table is not None]


Values = list[tuple[Any, list[str]]]
"""Distinct values of one key in a group of runs, each with the names of the runs that have it."""


def _groups(findings: Findings) -> dict[str, dict[str, Values]]:
    """Group -> key -> its distinct values; a group is an arm of a protocol, else a run."""
    groups: dict[str, dict[str, Values]] = {}
    for run in findings.runs:
        name = run.arm if findings.kind is Kind.protocol else label(findings, run)
        for key, value in _settings(findings, run).items():
            values = groups.setdefault(name, {}).setdefault(key, [])
            known = next((names for found, names in values if found == value), None)
            if known is None:
                values.append((value, [label(findings, run)]))
            else:
                known.append(label(findings, run))
    return groups


def _settings(findings: Findings, run: Run) -> dict[str, Any]:
    found = flatten({tier: run.record.get(tier, {}) for tier in TIERS})
    left_out = PER_SEED if findings.kind is Kind.protocol else ()
    return {key: value for key, value in found.items() if key not in left_out and "." in key}


def _tier(key: str) -> str:
    return key.partition(".")[0]


def _canonical(values: Values) -> str:
    return json.dumps([value for value, _ in values], sort_keys=True)


def _text(values: Values) -> str:
    if len(values) < 2:
        return setting(values[0][0]) if values else MISSING
    return "; ".join(f"{setting(value)} ({', '.join(names)})" for value, names in values)


def _differing(findings: Findings, groups: Mapping[str, dict[str, Values]], keys: list[str]) -> Table | None:
    if not keys:
        return None
    return Table(
        key="identity_differences",
        title=f"Identity: what differs between {'arms' if findings.kind is Kind.protocol else 'runs'}",
        columns=("tier", "key", *groups),
        rows=tuple((*_named(key), *(_text(group.get(key, [])) for group in groups.values())) for key in keys),
        note="A key that an optimizer does not have is missing there.",
        data=tuple(
            {**_key_record(key), "group": name, "value": _exact(value), "runs": " ".join(names)}
            for key in keys
            for name, group in groups.items()
            for value, names in group.get(key, [])
        ),
    )


def _shared(findings: Findings, values: Mapping[str, Values]) -> Table | None:
    if not values:
        return None
    alone = findings.kind is Kind.run
    return Table(
        key="identity",
        title="Identity" if alone else "Identity: what all runs share",
        columns=("tier", "key", "value"),
        rows=tuple((*_named(key), _text(found)) for key, found in values.items()),
        note="Training and measurement are the science that digests are over; execution is compared, not hashed. "
        + ("" if alone or findings.kind is not Kind.protocol else "The seed is left out: it differs by design."),
        data=tuple({**_key_record(key), "value": _exact(value)} for key, found in values.items() for value, _ in found),
    )


def _named(key: str) -> tuple[str, str]:
    tier, _, rest = key.partition(".")
    return tier, rest


def _key_record(key: str) -> dict[str, Any]:
    tier, rest = _named(key)
    return {"tier": tier, "key": rest}


def _exact(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict | bool) else value


def environment(findings: Findings) -> Table | None:
    """Machines, versions and times of every run, as recorded."""
    if not findings.runs:
        return None
    records = [_environment(findings, run) for run in findings.runs]
    return Table(
        key="environment",
        title="Machines, versions and times",
        columns=tuple(map(words, records[0])),
        rows=tuple(tuple(_moment(setting(value)) for value in record.values()) for record in records),
        note="Times are UTC, of the first attempt's start and the last one's end; attempts beyond 1 were resumed.",
        data=tuple(
            {**record, **{f"version_{name}": v for name, v in run.record.get("versions", {}).items()}}
            for run, record in zip(findings.runs, records, strict=True)
        ),
    )


def _moment(text: str) -> str:
    return text.removesuffix("+00:00").replace("T", " ") if MOMENT.fullmatch(text) else text


def _environment(findings: Findings, run: Run) -> Record:
    record, attempts = run.record, list(run.record.get("attempts", ()))
    execution, versions = record.get("execution", {}), record.get("versions", {})
    hosts = dict.fromkeys(str(attempt["host"]) for attempt in attempts if attempt.get("host"))
    return {
        "run": label(findings, run),
        "host": ", ".join(hosts) or record.get("host"),
        "device": execution.get("device_model") or execution.get("device"),
        "devices": execution.get("devices"),
        "threads": execution.get("threads"),
        "python": record.get("python"),
        **{name: versions.get(name) for name in VERSIONS},
        "attempts": len(attempts) or None,
        "started": attempts[0].get("started") if attempts else None,
        "ended": attempts[-1].get("ended") if attempts else None,
    }


def plan_table(findings: Findings) -> Table | None:
    """What was declared before the first run."""
    if not findings.plan:
        return None
    declared = flatten(findings.plan.get("declared", {}))
    rows = {"protocol": findings.plan.get("protocol"), **declared, "fingerprint": findings.plan.get("fingerprint")}
    return Table(
        key="plan",
        title="Plan, as declared before the first run",
        columns=("key", "value"),
        rows=tuple((words(key), setting(value)) for key, value in rows.items()),
        data=tuple({"key": key, "value": _exact(value)} for key, value in rows.items()),
    )
