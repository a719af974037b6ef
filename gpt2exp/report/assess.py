"""From folders to findings: what was asked for, what is there, whether it may be compared, and what it shows."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2exp import rundir
from gpt2exp.errors import StorageError
from gpt2exp.report.cautions import cautions
from gpt2exp.report.confounds import confounds
from gpt2exp.report.findings import Difference, Findings, Foreign, Kind, PairCheck, Requested
from gpt2exp.report.measures import Declared, final_endpoints, judged, reaching
from gpt2exp.report.pairs import check_pairs
from gpt2exp.report.pooling import describe, differences, key_of, names_of
from gpt2exp.report.records import planned_digest, read_identified, record_problems
from gpt2exp.report.runs import Run
from gpt2exp.report.sentences import counted

LLMC_LOG = "main.log"
ABSENT, DAMAGED, ANOTHER = "absent", "damaged", "another run"
"""What stands for a status where there is no run, none that can be read, or not the planned one."""


@dataclass(frozen=True)
class _Ledger:
    """Whether a protocol's runs may be put together, and the sentences that say why not, or why all the same."""

    pairs: tuple[PairCheck, ...]
    differences: tuple[Difference, ...]
    pooled: bool
    paired: bool
    lines: tuple[str, ...]


def assess(paths: Sequence[Path], allow_pooling: Sequence[str] = ()) -> Findings:
    """What a report on `paths` says.

    One folder with a `protocol.json` is a protocol: its planned runs are looked for and, where all are complete and
    their pairs and pooling hold, compared. Anything else is shown and never pooled or averaged, whatever its
    identities: nobody declared beforehand which of those runs belong together, and to choose them afterwards is to
    choose the result. Equal arms (by digest) of such runs are grouped for description. llm.c logs (`main.log`, or a
    folder that holds one and no run) go under their own label beside either.

    Args:
        paths: folders of protocols or runs, or llm.c logs.
        allow_pooling: full keys (`execution.torch`) that may differ in a protocol all the same, each said at the top.
            Initial weights and data order within a pair, and edited records, are never allowed.

    Raises:
        StorageError: nothing to report on there, or a damaged plan or run.
        DataError: a log that is not llm.c's.
    """
    from gpt2exp.protocol.plan import read_plan

    logs = [path for path in paths if _is_log(path)]
    folders = [path for path in paths if path not in logs]
    foreign = _read_logs(logs)
    plan = read_plan(folders[0]) if len(folders) == 1 else None
    if plan is not None:
        return _protocol(folders[0], plan, allow_pooling, foreign)
    runs = list({run.path.resolve(): run for folder in folders for run in _runs_below(folder)}.values())
    return _loose(runs, paths, foreign)


def _reference(runs: Sequence[Run]) -> tuple[Foreign, ...]:
    """The published curve of llm.c beside runs on its data and model."""
    from gpt2exp.report.curves import applies, reference_curve

    return (reference_curve(),) if any(map(applies, runs)) else ()


def _is_log(path: Path) -> bool:
    return path.is_file() or ((path / LLMC_LOG).is_file() and not rundir.find_runs(path))


def _read_logs(paths: Sequence[Path]) -> tuple[Foreign, ...]:
    from gpt2exp.report.curves import read_llmc_log

    return tuple(read_llmc_log(path if path.is_file() else path / LLMC_LOG) for path in paths)


def _runs_below(folder: Path) -> list[Run]:
    found = rundir.find_runs(folder)
    if not found:
        raise StorageError(f"{folder}: no run, protocol or llm.c log there; expected a folder that a run wrote")
    return [read_identified(path) for path in found]


def _protocol(folder: Path, plan: Mapping[str, Any], allowed: Sequence[str], foreign: tuple[Foreign, ...]) -> Findings:
    entries = [_look_up(folder, planned) for planned in plan["runs"]]
    runs = tuple(run for run, _ in entries if run is not None)
    requested = tuple(_with_budget(request, runs) for _, request in entries)
    declared, design = _declared(plan), plan["declared"]["design"]
    ledger = _ledger(runs, declared, design, allowed)
    whole = all(request.complete for request in requested)
    sweep = design == "sweep"
    comparable = whole and ledger.pooled and ledger.paired and not sweep
    compared = comparable and design == "paired" and len(declared.arms) > 1
    arms = {arm: [run for run in runs if run.arm == arm] for arm in declared.arms}
    endpoints = () if sweep else final_endpoints(arms, declared, pooled=ledger.pooled, compared=compared)
    reached = () if sweep else reaching(runs, declared, pooled=comparable, compared=compared)
    return Findings(
        kind=Kind.protocol,
        title=str(plan["protocol"]),
        folder=folder,
        runs=runs,
        plan=plan,
        requested=requested,
        warnings=(*_incomplete(requested), *ledger.lines, *_extra(folder, plan), *cautions(runs)),
        pairs=ledger.pairs,
        differences=ledger.differences,
        comparable=comparable,
        endpoints=endpoints,
        judgement=judged(declared, endpoints, reached) if comparable else None,
        reaching=reached,
        confounds=() if sweep else confounds(runs, plan),
        foreign=(*foreign, *_reference(runs)),
    )


def _declared(plan: Mapping[str, Any]) -> Declared:
    declared = plan["declared"]
    return Declared(
        arms=tuple(declared["arms"]),
        seeds=tuple(declared["seeds"]),
        primary=declared["primary"],
        secondary=tuple(declared["secondary"]),
        target=declared["target_val_loss"],
    )


def _look_up(folder: Path, planned: Mapping[str, Any]) -> tuple[Run | None, Requested]:
    """A planned run, if it is there, and what became of it."""
    path = folder / planned["folder"]
    place = (planned["folder"], planned["arm"], planned["seed"])
    if not rundir.is_run(path):
        return None, Requested(*place, ABSENT, 0, None)
    try:
        run = read_identified(path)
    except StorageError as error:
        return None, Requested(*place, DAMAGED, 0, None, str(error))
    if (run.arm, run.seed) != place[1:] or planned_digest(run) != planned["digest"]:
        reason = "; ".join(record_problems(run)) or f"arm {run.arm}, seed {run.seed}, or other settings than planned"
        return None, Requested(*place, ANOTHER, run.step, run.num_steps, reason)
    return run, _as_requested(run, planned["folder"])


def _as_requested(run: Run, folder: str) -> Requested:
    reason = str(run.record.get("reason") or "")
    return Requested(folder, run.arm, run.seed, run.status, run.step, run.num_steps, reason)


def _with_budget(request: Requested, runs: Sequence[Run]) -> Requested:
    """Runs of one plan share a budget, so that of an absent one is known from any other."""
    if request.num_steps is not None or not runs:
        return request
    return Requested(request.folder, request.arm, request.seed, request.status, 0, runs[0].num_steps, request.reason)


def _incomplete(requested: Sequence[Requested]) -> list[str]:
    open_ = [request for request in requested if not request.complete]
    if not open_:
        return []
    done = len(requested) - len(open_)
    where = "; ".join(_state(request) for request in open_)
    return [
        f"Incomplete: {done} of {counted(len(requested), 'requested run')} complete, so no paired statistics are "
        f"computed. Not complete: {where}."
    ]


def _state(request: Requested) -> str:
    if request.status == ABSENT:
        return f"{request.folder}: {ABSENT}"
    where = f" at step {request.step:,} of {request.num_steps:,}" if request.num_steps and request.step else ""
    return f"{request.folder}: {request.status}{where}{f' ({request.reason})' if request.reason else ''}"


def _extra(folder: Path, plan: Mapping[str, Any]) -> list[str]:
    planned = {folder / run["folder"] for run in plan["runs"]}
    extra = [str(path.relative_to(folder)) for path in rundir.find_runs(folder) if path not in planned]
    if not extra:
        return []
    return [f"Not in the plan, and not used: {', '.join(extra)}."]


def _ledger(runs: Sequence[Run], declared: Declared, design: str, allowed: Sequence[str]) -> _Ledger:
    """Pairs are checked in the plan's order of arms, so that problems read like the comparison."""
    ordered = sorted(runs, key=lambda run: (*_place(run.seed, declared.seeds), *_place(run.arm, declared.arms)))
    pairs, strict = (check_pairs(ordered, keys) if design == "paired" else () for keys in (allowed, ()))
    found = differences(runs, same_optimizer=design != "sweep")
    forbidding = [difference for difference in found if key_of(difference) not in allowed]
    edited = _edited(runs)
    lines = [f"Not pooled, because runs differ in {describe(difference)}." for difference in forbidding]
    lines += [f"Pair of seed {pair.seed} refused: {problem}." for pair in pairs for problem in pair.problems]
    lines += [] if pairs else edited
    return _Ledger(
        pairs,
        found,
        pooled=not forbidding and not edited,
        paired=all(pair.holds for pair in pairs),
        lines=(*lines, *_overrides(found, pairs, strict, allowed)),
    )


def _place(value: Any, order: Sequence[Any]) -> tuple[int, str]:
    return (order.index(value) if value in order else len(order), str(value))


def _overrides(
    found: Sequence[Difference], pairs: Sequence[PairCheck], strict: Sequence[PairCheck], allowed: Collection[str]
) -> list[str]:
    lines = [f"Pooled although {describe(d)} differs, as asked." for d in found if key_of(d) in allowed]
    accepted = [
        (full.seed, problem)
        for kept, full in zip(pairs, strict, strict=True)
        for problem in full.problems
        if problem not in kept.problems
    ]
    lines += [f"Pair of seed {seed} used although {problem}, as asked." for seed, problem in accepted]
    used = {key_of(difference) for difference in found} | {problem.partition(":")[0] for _, problem in accepted}
    unused = [key for key in dict.fromkeys(allowed) if key not in used]
    return lines + [f"{key} was allowed to differ, and does not (or is nothing that may be allowed)." for key in unused]


def _edited(runs: Sequence[Run]) -> list[str]:
    named = zip(runs, names_of(runs), strict=True)
    return [f"{name} is not what it wrote: {problem}." for run, name in named for problem in record_problems(run)]


def _loose(runs: Sequence[Run], paths: Sequence[Path], foreign: tuple[Foreign, ...]) -> Findings:
    if not runs and not foreign:
        raise StorageError("nothing to report on: name a protocol's folder, runs, or an llm.c log")
    single = len(runs) == 1
    groups = _groups(runs)
    target = (runs[0].config.get("plan") or {}).get("target_val_loss") if single else None
    declared = Declared(tuple(groups), (), "final_val_loss", target=target)
    return Findings(
        kind=Kind.run if single else Kind.runs,
        title=names_of(runs)[0] if single else _title(runs, foreign),
        folder=paths[0] if len(paths) == 1 else Path(os.path.commonpath([path.resolve() for path in paths])),
        runs=tuple(runs),
        requested=tuple(_as_requested(run, str(run.path)) for run in runs),
        warnings=(*_unfinished(runs), *_edited(runs), *cautions(runs)),
        differences=differences(runs),
        endpoints=final_endpoints(groups, declared, pooled=False, compared=False) if runs else (),
        reaching=reaching(runs, declared, pooled=False, compared=False),
        confounds=confounds(runs),
        foreign=(*foreign, *_reference(runs)),
    )


def _title(runs: Sequence[Run], foreign: Sequence[Foreign]) -> str:
    parts = [counted(len(runs), "run")] if runs else [log.label for log in foreign]
    return ", ".join(parts)


def _groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by arm digest, under their arm's label; under their own names where labels or seeds would collide."""
    by_digest: dict[str, list[tuple[Run, str]]] = {}
    for run, name in zip(runs, names_of(runs), strict=True):
        by_digest.setdefault(run.record["digests"].get("arm", name), []).append((run, name))
    labels = [members[0][0].arm for members in by_digest.values()]
    groups: dict[str, list[Run]] = {}
    for members in by_digest.values():
        label, seeds = members[0][0].arm, {run.seed for run, _ in members}
        if labels.count(label) == 1 and len(seeds) == len(members):
            groups[label] = [run for run, _ in members]
        else:
            groups.update({name: [run] for run, name in members})
    return groups


def _unfinished(runs: Sequence[Run]) -> list[str]:
    named = [(name, _as_requested(run, name)) for run, name in zip(runs, names_of(runs), strict=True)]
    states = [_state(request) for _, request in named if not request.complete]
    return [f"Not complete: {'; '.join(states)}."] if states else []
