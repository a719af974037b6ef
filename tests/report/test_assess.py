"""From folders to findings: complete protocols are compared, everything else is shown and its reasons are said."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
from run_dirs import (
    ADAMW,
    CORPUS,
    EXECUTION,
    INPUTS,
    LOSSES,
    MUONCLIP,
    OVERRIDES,
    config,
    edit,
    one_byte_changed,
    plan_of,
    write_plan,
    write_protocol,
    write_run,
)
from scipy import stats

from gpt2exp.config import Design
from gpt2exp.errors import DataError, Gpt2ExpError, StorageError
from gpt2exp.protocol.plan import make_plan, publish, run_digest
from gpt2exp.report.assess import assess
from gpt2exp.report.findings import Kind
from gpt2exp.report.page import escape_markdown, render_markdown
from gpt2exp.report.records import planned_digest, read_identified
from gpt2exp.report.tuning import explain_tuning, tune

SEEDS = (1, 2, 3)
FINAL = {MUONCLIP: (3.2581, 3.2609, 3.2567), ADAMW: (3.2791, 3.2842, 3.2780)}
SECONDARY = ("final_token_error", "steps_to_target")


def table(final=FINAL):
    """Losses at steps 0, 2 and 4 by arm and seed."""
    return {arm: {seed: (5.5, 4.5, loss) for seed, loss in zip(SEEDS, final[arm], strict=True)} for arm in final}


@pytest.fixture
def protocol(tmp_path):
    return write_protocol(tmp_path / "six", table(), secondary=SECONDARY)


def warned(findings, *words):
    found = [line for line in findings.warnings if all(word in line for word in words)]
    assert len(found) == 1, findings.warnings
    return found[0]


def refused(findings):
    """Nothing is said between arms, and arms are described by their values."""
    assert not findings.comparable
    assert findings.judgement is None
    assert all(endpoint.comparisons == () for endpoint in findings.endpoints)
    assert all(reach.comparisons == () and reach.arms == () for reach in findings.reaching)
    return findings


def test_a_complete_protocol_gives_scipys_statistics(protocol):
    findings = assess([protocol])
    assert (findings.kind, findings.title, findings.comparable, findings.complete) == (
        Kind.protocol, "by_hand", True, True,
    )  # fmt: skip
    assert findings.warnings == ()
    assert [pair.holds for pair in findings.pairs] == [True] * 3
    primary, error, train = findings.endpoints
    assert [endpoint.name for endpoint in (primary, error, train)] == [
        "final_val_loss", "final_token_error", "final_train_loss",
    ]  # fmt: skip
    a, b = (np.array(FINAL[arm]) for arm in (MUONCLIP, ADAMW))
    (comparison,) = primary.comparisons
    expected = stats.ttest_rel(a, b)
    interval = expected.confidence_interval()
    assert comparison.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert (comparison.interval.low, comparison.interval.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    permuted = stats.permutation_test((a, b), lambda x, y: np.mean(x - y), permutation_type="samples")
    assert comparison.exact.p == permuted.pvalue == 0.25
    assert [arm.mean for arm in primary.arms] == pytest.approx([a.mean(), b.mean()], rel=1e-12)
    assert [arm.sd for arm in primary.arms] == pytest.approx([a.std(ddof=1), b.std(ddof=1)], rel=1e-9)
    assert comparison.pairing.correlation == pytest.approx(stats.pearsonr(a, b).statistic, rel=1e-9)


def test_one_endpoint_is_primary_and_holm_adjusts_the_declared_rest(protocol):
    findings = assess([protocol])
    judgement = findings.judgement
    p = findings.endpoints[1].comparisons[0].p
    assert judgement.primary.endpoint == "final validation loss"
    assert judgement.primary.p == judgement.primary.adjusted
    assert [outcome.endpoint for outcome in judgement.secondary] == ["final token error", "steps to the target"]
    assert judgement.secondary[0].adjusted == pytest.approx(2 * p)
    assert judgement.primary.verdict == "not judged"
    assert findings.endpoints[2].comparisons == (), "an undeclared endpoint is described, not tested"


def test_time_to_target_is_censored_data(tmp_path):
    losses = table({MUONCLIP: (3.5, 3.6, 3.7), ADAMW: (4.5, 3.9, 4.2)})
    losses[MUONCLIP][1] = (5.5, 3.9, 3.5)
    findings = assess([write_protocol(tmp_path / "six", losses, secondary=SECONDARY)])
    steps, seconds = findings.reaching
    assert (steps.axis, seconds.axis, seconds.comparisons) == ("step", "seconds", ())
    kinds = {key: (found.kind, found.lower, found.upper) for key, found in steps.crossings.items()}
    assert kinds[(MUONCLIP, 1)] == ("interval", 0, 2)
    assert kinds[(ADAMW, 1)] == ("right", 4, math.inf)
    (comparison,) = steps.comparisons
    assert [arm.reached for arm in steps.arms] == [3, 1]
    assert comparison.first == {1: "a", 2: "undecided", 3: "a"}
    assert comparison.p == stats.binomtest(2, 2).pvalue


@pytest.mark.parametrize("status", ["running", "stopped", "failed", "measuring", "claimed"])
def test_an_unfinished_run_means_no_paired_statistics(tmp_path, status):
    folder = write_protocol(
        tmp_path / "six", table(), secondary=SECONDARY, changed={f"seed=3/{ADAMW}": {"status": status, "reason": "why"}}
    )
    findings = refused(assess([folder]))
    line = warned(findings, "Incomplete: 5 of 6 requested runs complete", "no paired statistics")
    assert f"seed=3/{ADAMW}: {status} at step 4 of 4 (why)" in line
    assert findings.warnings[0] == line
    assert findings.endpoints[0].arms[0].mean == pytest.approx(np.mean(FINAL[MUONCLIP]))


def test_a_missing_run_is_absent(protocol):
    shutil.rmtree(protocol / "seed=2" / ADAMW)
    findings = refused(assess([protocol]))
    assert f"seed=2/{ADAMW}: absent" in warned(findings, "Incomplete: 5 of 6")
    (absent,) = [request for request in findings.requested if not request.complete]
    assert (absent.arm, absent.seed, absent.status, absent.step, absent.num_steps) == (ADAMW, 2, "absent", 0, 4)
    assert findings.endpoints[0].arms[1].missing == (2,)
    assert len(findings.runs) == 5 and not findings.complete


def test_a_plan_without_any_run_is_a_report_too(tmp_path):
    write_plan(tmp_path / "six", (MUONCLIP, ADAMW), SEEDS)
    findings = refused(assess([tmp_path / "six"]))
    assert {request.status for request in findings.requested} == {"absent"}
    assert warned(findings, "Incomplete: 0 of 6")


def test_a_damaged_run_is_named_and_does_not_hide_the_others(protocol):
    (protocol / "seed=2" / ADAMW / "run.json").write_text("{")
    findings = refused(assess([protocol]))
    assert f"seed=2/{ADAMW}: damaged" in warned(findings, "Incomplete")


def test_an_extra_run_is_named_and_not_used(protocol):
    write_run(protocol / "seed=9" / ADAMW, config(ADAMW, 9))
    findings = assess([protocol])
    assert findings.comparable and len(findings.runs) == 6
    assert warned(findings, "Not in the plan, and not used") == f"Not in the plan, and not used: seed=9/{ADAMW}."


@pytest.mark.parametrize(
    "other", [(ADAMW, 9), (ADAMW, 1, "optimizer.lr=0.004"), (MUONCLIP, 1), (ADAMW, 1, "precision=fp64")]
)
def test_another_run_in_a_planned_place_is_refused(protocol, other):
    shutil.rmtree(protocol / "seed=1" / ADAMW)
    write_run(protocol / "seed=1" / ADAMW, config(*other))
    findings = refused(assess([protocol]))
    assert f"seed=1/{ADAMW}: another run" in warned(findings, "Incomplete: 5 of 6")
    assert len(findings.runs) == 5


def test_an_edited_setting_is_refused_by_name(protocol):
    edit(protocol / "seed=1" / ADAMW, "training.optimizer.lr", 0.5)
    findings = refused(assess([protocol]))
    assert "training.optimizer.lr is 0.5 in run.json, 0.002 in config.yaml" in warned(findings, "Incomplete")


def test_one_byte_of_a_data_hash_changed_is_refused_and_named(protocol):
    edit(protocol / "seed=2" / ADAMW, "training.data.corpus", one_byte_changed)
    allowed = ["training.data.corpus"]
    for findings in (assess([protocol]), assess([protocol], allowed)):
        refused(findings)
        assert warned(
            findings, "Pair of seed 2 refused", f"training.data.corpus: {CORPUS} in", one_byte_changed(CORPUS)
        )
        assert warned(findings, "Pair of seed 2 refused", "digests.training", "edited after the run")
        assert [pair.holds for pair in findings.pairs] == [True, False, True]
        assert all(arm.mean is None for endpoint in findings.endpoints for arm in endpoint.arms)


def other_execution(**changed):
    return {"execution": {**EXECUTION, **changed}}


def test_other_initial_weights_are_never_subtracted(tmp_path):
    changed = {f"seed=1/{ADAMW}": {"initial_weights_sha256": "e" * 64}}
    folder = write_protocol(tmp_path / "six", table(), changed=changed)
    findings = refused(assess([folder], ["initial_weights_sha256"]))
    assert warned(findings, "Pair of seed 1 refused: initial_weights_sha256", "e" * 64)
    assert warned(findings, "initial_weights_sha256 was allowed to differ, and does not (or is nothing that may be")


def test_pooling_over_seeds_is_refused_with_the_keys_and_allowed_only_by_name(tmp_path):
    changed = {
        f"seed=3/{arm}": {**other_execution(torch="2.14.0"), "inputs": replace(INPUTS, tokenizer_digest="d4" * 32)}
        for arm in (MUONCLIP, ADAMW)
    }
    folder = write_protocol(tmp_path / "six", table(), changed=changed)
    findings = refused(assess([folder]))
    assert warned(findings, "Not pooled, because runs differ in execution.torch (2.13: ", "2.14: muonclip_nano seed 3")
    assert warned(findings, "Not pooled, because runs differ in training.data.tokenizer")
    assert all(pair.holds for pair in findings.pairs)
    assert all(arm.mean is None and arm.sd is None for arm in findings.endpoints[0].arms)
    assert findings.endpoints[0].arms[0].by_seed == dict(zip(SEEDS, FINAL[MUONCLIP], strict=True))

    refused(assess([folder], ["execution.torch"]))
    findings = assess([folder], ["execution.torch", "training.data.tokenizer"])
    assert findings.comparable
    assert warned(findings, "Pooled although execution.torch (2.13: ", "differs, as asked")
    assert warned(findings, "Pooled although training.data.tokenizer", "differs, as asked")
    assert findings.endpoints[0].comparisons[0].n == 3


def test_execution_inside_a_pair_may_be_allowed_by_name(tmp_path):
    changed = {f"seed=1/{ADAMW}": other_execution(threads=2)}
    folder = write_protocol(tmp_path / "six", table(), changed=changed)
    assert warned(refused(assess([folder])), "Pair of seed 1 refused: execution.threads: 1 in muonclip_nano, 2 in")
    findings = assess([folder], ["execution.threads"])
    assert findings.comparable
    assert warned(findings, "Pair of seed 1 used although execution.threads: 1 in muonclip_nano, 2 in", "as asked")


def test_an_override_that_nothing_needs_is_said(protocol):
    findings = assess([protocol], ["execution.trch"])
    assert findings.comparable
    assert warned(findings, "execution.trch was allowed to differ, and does not")


def test_threads_that_differ_between_seeds_are_printed_only(tmp_path):
    changed = {f"seed=1/{arm}": other_execution(threads=2) for arm in (MUONCLIP, ADAMW)}
    findings = assess([write_protocol(tmp_path / "six", table(), changed=changed)])
    assert findings.comparable
    assert warned(findings, "Runs differ in execution.threads (2: ", "does not keep them from being pooled")


@pytest.mark.parametrize("broken", [None, "absent row"])
def test_a_pair_without_a_number_makes_the_comparison_incomplete(tmp_path, broken):
    losses = table()
    losses[ADAMW][2] = (5.5, 4.5, None)
    folder = write_protocol(tmp_path / "six", losses, secondary=SECONDARY)
    if broken:
        file = folder / "seed=2" / ADAMW / "evaluations.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
        refused(assess([folder]))
        return
    findings = assess([folder])
    (comparison,) = findings.endpoints[0].comparisons
    assert comparison.incomplete == (f"seed 2: {ADAMW} is not finite",)
    assert comparison.p is None and findings.endpoints[0].arms[1].mean is None
    assert findings.judgement.primary.verdict == "not judged"
    assert "not finite" in findings.judgement.primary.reason


def test_what_happened_to_runs_stands_at_the_top(tmp_path):
    changed = {
        f"seed=1/{MUONCLIP}": {"gated": (2, 3)},
        f"seed=2/{ADAMW}": {"host": "elsewhere"},
        f"seed=3/{ADAMW}": {"inexact": [{"threads": [1, 2]}]},
    }
    findings = refused(assess([write_protocol(tmp_path / "six", table(), changed=changed)]))
    assert warned(findings, f"{MUONCLIP} seed 1: 2 of 4 updates gated")
    assert warned(findings, "Made on 2 hosts", "elsewhere: adamw_nano seed 2")
    assert warned(findings, f"{ADAMW} seed 3 was resumed inexactly (execution.threads 1, then 2)")
    assert warned(findings, "Pair of seed 3 refused", "resumed inexactly")


def test_repeated_tokens_are_said(tmp_path):
    path = write_run(tmp_path / "r", config(ADAMW, 1, "data.allow_repeat=true"))
    assert warned(assess([path]), "data.allow_repeat=true in 1 run")


def test_three_arms_have_one_unadjusted_p(tmp_path):
    arms = {MUONCLIP: FINAL[MUONCLIP], ADAMW: FINAL[ADAMW], "muon": (3.27, 3.29, 3.27)}
    findings = assess([write_protocol(tmp_path / "nine", table(arms))])
    first, second = findings.endpoints[0].comparisons
    assert findings.judgement.primary.endpoint == f"final validation loss ({MUONCLIP} - {ADAMW})"
    assert findings.judgement.primary.adjusted == first.p
    assert [(o.endpoint, o.adjusted) for o in findings.judgement.secondary] == [
        (f"final validation loss ({MUONCLIP} - muon)", second.p)
    ]


def test_the_primary_endpoint_is_the_plans(tmp_path):
    declared = {"primary": "steps_to_target", "secondary": ("tokens_to_target",)}
    findings = assess([write_protocol(tmp_path / "six", table(), **declared)])
    assert findings.judgement.primary.endpoint == "steps to the target"
    assert [reach.axis for reach in findings.reaching] == ["step", "tokens", "seconds"]
    assert findings.endpoints[0].comparisons == ()


def test_replicates_are_one_arm_summarized(tmp_path):
    folder = write_protocol(tmp_path / "three", {ADAMW: table()[ADAMW]}, design=Design.replicates)
    findings = assess([folder])
    assert findings.comparable and findings.judgement is None and findings.pairs == ()
    assert findings.endpoints[0].arms[0].sd == pytest.approx(np.std(FINAL[ADAMW], ddof=1))
    assert findings.reaching[0].arms[0].reached == 3
    edit(folder / "seed=2" / ADAMW, "training.seed", 7)
    findings = refused(assess([folder]))
    assert warned(findings, "another run", "training.seed is 7")


def test_runs_without_a_plan_are_never_pooled(tmp_path):
    for seed in SEEDS:
        write_run(tmp_path / f"m{seed}", config(MUONCLIP, seed))
    write_run(tmp_path / "again", config(ADAMW, 1))
    write_run(tmp_path / "other", config(ADAMW, 1, "optimizer.lr=0.001"), (5.5, 4.5, 4.1))
    findings = refused(assess([tmp_path]))
    assert (findings.kind, findings.title, len(findings.runs)) == (Kind.runs, "5 runs", 5)
    assert findings.pairs == () and findings.reaching == ()
    arms = {arm.arm: (arm.by_seed, arm.mean) for arm in findings.endpoints[0].arms}
    assert arms == {
        "again": ({1: 3.5}, None), "other": ({1: 4.1}, None), MUONCLIP: (dict.fromkeys(SEEDS, 3.5), None),
    }  # fmt: skip
    assert [difference.key for difference in findings.differences] == ["optimizer.lr"]


def test_one_run_twice_is_one_run(tmp_path):
    path = write_run(tmp_path / "r", config(ADAMW, 1, plan=plan_of([ADAMW], [1])), status="running")
    findings = refused(assess([path, tmp_path / "r" / ".." / "r"]))
    assert (findings.kind, findings.title) == (Kind.run, f"{ADAMW} seed 1")
    assert findings.reaching[0].crossings[(ADAMW, 1)].kind == "interval"
    assert warned(findings, "Not complete: ", "running at step 4 of 4")


def test_an_edited_run_alone_is_said(tmp_path):
    path = write_run(tmp_path / "r", config(ADAMW, 1))
    edit(path, "training.data.corpus", one_byte_changed)
    assert warned(assess([path]), f"{ADAMW} seed 1 is not what it wrote: training.data.corpus is ")


def test_protocols_side_by_side_are_runs(protocol, tmp_path):
    other = write_protocol(tmp_path / "other", table())
    findings = refused(assess([protocol, other]))
    assert findings.kind is Kind.runs and len(findings.runs) == 12
    assert findings.folder == tmp_path
    assert len(findings.endpoints[0].arms) == 12


LLMC = "s:0 tel:10.9\ns:0 eval:0.25\ns:1 trl:10.8 lr:0.0001 norm:1.0\ns:250 tel:5.5\n"


def test_llmc_logs_are_foreign_beside_runs_and_alone(protocol, tmp_path):
    log = tmp_path / "log124M" / "main.log"
    log.parent.mkdir()
    log.write_text(LLMC)
    findings = assess([protocol, log])
    assert findings.comparable and len(findings.runs) == 6
    assert [(point.step, point.val_loss) for point in findings.foreign[0].points] == [(0, 10.9), (250, 5.5)]
    alone = assess([log.parent])
    assert (alone.kind, alone.runs, len(alone.foreign)) == (Kind.runs, (), 1)
    assert alone.title == alone.foreign[0].label
    log.write_text("nothing\n")
    with pytest.raises(DataError):
        assess([log])


def test_a_sweep_is_read_and_not_tested(tmp_path):
    grid = {MUONCLIP: {0.004: 3.9, 0.008: 3.4, 0.016: 3.6}, ADAMW: {0.001: 3.7, 0.002: 3.6, 0.004: 3.5}}
    plan = plan_of(grid, [1], design=Design.sweep)
    planned = []
    for arm in grid:
        cfg = config(arm, 1, plan=plan)
        for lr in grid[arm]:
            planned.append((f"seed=1/{arm}/lr={lr}", replace(cfg, optimizer=replace(cfg.optimizer, lr=lr))))
    publish(make_plan("sweep", planned), tmp_path / "sweep")
    for place, cfg in planned:
        write_run(tmp_path / "sweep" / place, cfg, (5.5, 4.5, grid[cfg.arm][cfg.optimizer.lr]))
    findings = refused(assess([tmp_path / "sweep"]))
    assert findings.warnings == () and findings.endpoints == () and findings.differences == ()
    assert findings.confounds == ()
    said = [
        f"{MUONCLIP}: lowest final validation loss 3.4 at lr=0.008 (of 3 settings, 1 seed).",
        f"{ADAMW}: lowest final validation loss 3.5 at lr=0.004 (of 3 settings, 1 seed).",
        f"{ADAMW}: the best lr=0.004 lies at the high edge of its grid (0.001 to 0.004), so a better one may lie "
        "beyond: widen the grid.",
    ]
    assert explain_tuning(tune(findings.runs)) == said
    page = render_markdown(findings, {})
    assert "A search for settings" in page and "Confounds" not in page and "Tuning budget" not in page
    assert all(page.count(escape_markdown(line)) == 1 for line in said)


def test_a_plan_edited_after_planning_is_refused(protocol):
    record = json.loads((protocol / "protocol.json").read_text())
    record["declared"]["primary"] = "final_token_error"
    (protocol / "protocol.json").write_text(json.dumps(record))
    with pytest.raises(StorageError, match="edited after planning"):
        assess([protocol])


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_nothing_to_report_on_is_one_line(tmp_path, name):
    with pytest.raises(Gpt2ExpError, match=r"no run, protocol or llm\.c log there"):
        assess([tmp_path / name])


@pytest.mark.parametrize("key", ["digests", "training.data", "measurement.evaluation", "initial_weights_sha256"])
def test_a_record_without_an_identity_is_damaged(tmp_path, key):
    path = write_run(tmp_path / "r", config(ADAMW, 1))
    record = json.loads((path / "run.json").read_text())
    outer, _, last = key.rpartition(".")
    del (record[outer] if outer else record)[last]
    (path / "run.json").write_text(json.dumps(record))
    with pytest.raises(StorageError, match=f"has no {key}: damaged, or of another version"):
        assess([path])


@pytest.mark.parametrize("every", [None, 2])
def test_a_run_knows_the_digest_that_its_plan_gave_it(tmp_path, every):
    cfg = config(ADAMW, 1)
    cfg = replace(cfg, tracking=replace(cfg.tracking, every=every))
    inputs = replace(INPUTS, model_sha256="f0" * 32, probe_digest="aa" * 32, spectral_estimator="fast 1")
    run = read_identified(write_run(tmp_path / "r", cfg, LOSSES, inputs=inputs))
    assert planned_digest(run) == run_digest(cfg)


def test_runs_that_really_ran_are_a_comparable_protocol(cli, tmp_path):
    """Two tiny runs of the product, planned as a protocol of one seed."""
    folder = tmp_path / "smoke"
    write_plan(folder, (MUONCLIP, ADAMW), [1])
    for arm in (MUONCLIP, ADAMW):
        done = cli(*OVERRIDES, f"optimizer={arm}", "seed=1", f"hydra.run.dir='{folder}/seed=1/{arm}'")
        assert done.status == 0, done.err
    findings = assess([folder])
    assert findings.warnings == ()
    assert findings.comparable and findings.complete
    (comparison,) = findings.endpoints[0].comparisons
    assert comparison.n == 1 and comparison.mean != 0
