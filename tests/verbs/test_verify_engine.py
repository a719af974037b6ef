"""An engine that is wrong in one number is caught, and the number is named; one that is right passes."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, replace
from math import inf, nan, nextafter

import numpy as np
import pytest
from quick import quickly

from gpt2exp import assembly
from gpt2exp.config import Precision, shipped
from gpt2exp.engines.base import QKRecord
from gpt2exp.engines.tolerances import EQUAL, FP32, Bound, Measure, tolerances
from gpt2exp.errors import ConfigError
from gpt2exp.optim.adamw import AdamWRecipe
from gpt2exp.optim.muon import AuxRecipe
from gpt2exp.optim.muonclip import MuonClipRecipe
from gpt2exp.verbs import verify
from gpt2exp.verification import engine_parity
from gpt2exp.verification.engine_parity import LR_FACTORS, Row, compare, difference, maxima, on_reference, row, work
from gpt2exp.verification.parity_tables import table, text_of

SMALL = ("model.n_embd=16", "schedule.tokens_per_step=64", "hardware.threads=1")
"""Two rows of 32 tokens a step."""
HEAD, MATRIX, EMBEDDING = "transformer.ln_f.weight", "transformer.h.1.mlp.c_fc.weight", "transformer.wpe.weight"
STEPS = 3


@pytest.fixture(scope="module")
def small():
    """Configuration and inputs of a comparison that takes a twentieth of a second."""
    cfg = verify.configuration(["hardware=cpu", *SMALL, "optimizer.qk_clip_threshold=0.005"])
    return cfg, assembly.resolve(cfg)


class Perturbed:
    """An engine whose answers `change` falsifies: a method's name -> what to make of its result.

    `at` is the step before which nothing is false.
    """

    def __init__(self, engine, method, change, at=0):
        self.engine, self.method, self.change, self.at = engine, method, change, at

    def __getattr__(self, name):
        found = getattr(self.engine, name)
        if name != self.method:
            return found

        def falsified(*arguments):
            result = found(*arguments)
            return self.change(result) if self.engine.step >= self.at else result

        return falsified


def parity_of(small, other=lambda engine: engine):
    """The reference against a second reference, falsified or not."""
    cfg, inputs = small
    first, second = (assembly.torch_engine(on_reference(cfg), None, 1) for _ in range(2))
    try:
        given, bounds = work(cfg, inputs, STEPS), tolerances("cpu", cfg.precision, cfg.optimizer)
        return compare(first, other(second), given, bounds)
    finally:
        first.close()
        second.close()


def test_identical_engines_are_identical(small):
    parity = parity_of(small)
    assert parity.failures == [] and parity.worst is None
    assert all(found.measured == 0 for found in parity.rows)
    assert sum(record.qk.clipped_heads for record in parity.records) > 0, "clipping was to be forced"
    assert parity.lr_factors == LR_FACTORS[:STEPS] and 0.0 in parity.lr_factors


def array_of(name, change):
    """Falsify one tensor of a dictionary."""
    return lambda arrays: {**arrays, name: change(arrays[name].copy())}


def one_element(amount):
    def change(array):
        array.flat[1] += amount
        return array

    return change


def state_of(kind, name, change):
    """Falsify a weight or a slot of a state."""
    return lambda state: replace(state, **{kind: array_of(name, change)(getattr(state, kind))})


def record_of(**changes):
    """Falsify fields of the records of a drain: `field=function of its value`."""
    return lambda records: [
        replace(record, **{field: change(getattr(record, field)) for field, change in changes.items()})
        for record in records
    ]


def in_qk(**changes):
    return record_of(
        qk=lambda qk: replace(qk, **{field: change(getattr(qk, field)) for field, change in changes.items()})
    )


def fields_of(**changes):
    """Falsify fields of an evaluation."""
    return lambda record: replace(
        record, **{field: change(getattr(record, field)) for field, change in changes.items()}
    )


class Recompiling:
    """Counts a compilation at one step."""

    def __init__(self, engine, step):
        self.engine, self.step_of_it = engine, step

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def compiles(self):
        return 4 + (self.engine.step >= self.step_of_it)


PERTURBED = {
    "a weight before the first step": ("weights", array_of(HEAD, one_element(6e-8)), 0, "initial weights", HEAD, [0]),
    "a gradient": ("gradients", array_of(MATRIX, one_element(1.2e-7)), 0, "gradients", MATRIX, [0]),
    "a missing gradient": ("gradients", lambda found: {n: g for n, g in found.items() if n != HEAD}, 0, "gradients",
                           HEAD, [0]),
    "the loss": ("drain", record_of(loss=lambda loss: loss + 2.6e-6), 2, "loss", "", [2, 3]),
    "a loss that is not a number": ("drain", record_of(loss=lambda loss: nan), 3, "loss", "", [3]),
    "the norm": ("drain", record_of(grad_norm=lambda norm: norm * (1 + 2e-6)), 3, "grad norm", "", [3]),
    "the clip coefficient": ("drain", record_of(clip_coef=lambda c: c * (1 + 2e-6)), 3, "clip coef", "", [3]),
    "a learning rate": ("drain", record_of(lr=lambda lr: {**lr, "hidden": nextafter(lr["hidden"], 1)}), 2, "lr",
                        "hidden", [2, 3]),
    "the gate": ("drain", record_of(gated=lambda gated: not gated), 3, "gated", "", [3]),
    "the step": ("drain", record_of(step=lambda step: step + 1), 3, "step", "", [3]),
    "a maximum": ("drain", in_qk(maxima=lambda m: (m[0], m[1] + 1.1e-5)), 3, "QK maximum", "layer 1", [3]),
    "clipped heads": ("drain", in_qk(clipped_heads=lambda heads: heads + 1), 2, "clipped heads", "", [2, 3]),
    "a weight": ("state", state_of("weights", EMBEDDING, one_element(2.1e-6)), 2, "weights", EMBEDDING, [2, 3]),
    "a weight that is not a number": ("state", state_of("weights", HEAD, one_element(nan)), 3, "weights", HEAD, [3]),
    "a momentum": ("state", state_of("slots", f"momentum_buffer/{MATRIX}", lambda b: b * np.float32(1 + 2e-5)), 2,
                   "momentum_buffer", MATRIX, [2, 3]),
    "a first moment": ("state", state_of("slots", f"exp_avg/{HEAD}", lambda m: m * np.float32(1 + 2e-5)), 1,
                       "exp_avg", HEAD, [1, 2, 3]),
    "a second moment": ("state", state_of("slots", f"exp_avg_sq/{HEAD}", lambda v: v * np.float32(1 + 2e-5)), 3,
                        "exp_avg_sq", HEAD, [3]),
    "a slot of another shape": ("state", state_of("slots", f"exp_avg/{HEAD}", lambda m: m[1:]), 3, "exp_avg", HEAD,
                                [3]),
    "the validation loss": ("evaluate", fields_of(loss_sum=lambda s: s + 2.6e-6 * 704), 1, "val loss", "", [3]),
    "a wrong token": ("evaluate", fields_of(wrong_tokens=lambda wrong: wrong - 1), 0, "wrong tokens", "", [0, 3]),
}  # fmt: skip


@pytest.mark.parametrize("name", PERTURBED)
def test_one_wrong_number_is_caught_and_named(small, name):
    method, change, at, quantity, part, steps = PERTURBED[name]
    parity = parity_of(small, lambda engine: Perturbed(engine, method, change, at))
    assert [(found.quantity, found.part, found.step) for found in parity.failures] == [
        (quantity, part, step) for step in steps
    ]
    assert parity.worst in parity.failures
    assert quantity in str(parity.worst) and part in str(parity.worst)


def test_a_tensor_on_one_side_only_is_a_difference(small):
    """A slot that the reference does not have, and a weight that the other does not have."""

    def change(state):
        weights = {name: array for name, array in state.weights.items() if name != HEAD}
        return replace(state, weights=weights, slots={**state.slots, "extra/x": np.zeros(1)})

    parity = parity_of(small, lambda engine: Perturbed(engine, "state", change, 3))
    assert [(found.quantity, found.part) for found in parity.failures] == [("weights", HEAD), ("extra", "x")]


def test_compiling_is_for_the_first_step(small):
    """Whatever was compiled before the first update and in it is free; later, one is one too many."""
    assert parity_of(small, lambda engine: Recompiling(engine, 1)).failures == []
    parity = parity_of(small, lambda engine: Recompiling(engine, 2))
    assert [(found.quantity, found.step) for found in parity.failures] == [("compilations", 2)]
    assert parity.compiles == (0, 1, 0)


def bounded(limit, measure=Measure.absolute):
    return Bound(limit, measure, "a test")


def test_the_limit_itself_is_within_tolerance():
    reference = {"w": np.array([0.0, 4.0])}
    for measure, scale in ((Measure.absolute, 1.0), (Measure.of_largest, 4.0)):
        bound = bounded(0.25, measure)
        assert row(1, "weights", reference, {"w": np.array([0.25 * scale, 4.0])}, bound).passed
        assert not row(1, "weights", reference, {"w": np.array([nextafter(0.25, 1) * scale, 4.0])}, bound).passed


def test_what_is_not_finite_differs_unless_both_are_it():
    one = np.ones(2)
    assert difference(np.array([nan, inf]), np.array([nan, inf])) == (0.0, 0.0)
    for broken in (np.array([1.0, nan]), np.array([1.0, inf]), np.array([-inf, 1.0])):
        assert difference(one, broken) == difference(broken, one) == (inf, inf)
    assert difference(one, None) == difference(one, np.ones(3)) == difference(one, np.ones((2, 1))) == (inf, inf)


def test_a_difference_from_nothing_is_infinite_as_a_share():
    assert difference(np.zeros(2), np.zeros(2)) == (0.0, 0.0)
    assert difference(np.zeros(2), np.array([0.0, 1e-9])) == (1e-9, inf)


def test_the_largest_difference_may_be_in_another_tensor_than_the_largest_share():
    reference = {"large": np.array([100.0]), "little": np.array([1e-3])}
    found = {"large": np.array([100.5]), "little": np.array([2e-3])}
    absolute, share = (row(1, "weights", reference, found, bounded(0, measure)) for measure in Measure)
    assert (absolute.part, share.part) == ("large", "little")
    assert absolute.absolute == share.absolute == 0.5 and absolute.of_largest == share.of_largest == 1.0


def test_a_bound_on_the_logits_is_held_against_the_exact_maximum():
    """The CPU reports a bound where nothing can clip; the true maximum is at most that."""
    bound, exact = QKRecord((3.0, 3.0), ("bound", "exact"), 0), QKRecord((2.0, 3.0), ("exact", "exact"), 0)
    above = replace(exact, maxima=(3.5, 3.0))
    assert row(1, "QK maximum", *maxima(bound, exact), EQUAL).passed
    assert row(1, "QK maximum", *maxima(exact, bound), EQUAL).passed
    assert not row(1, "QK maximum", *maxima(bound, above), EQUAL).passed
    assert not row(1, "QK maximum", *maxima(above, bound), EQUAL).passed
    assert not row(1, "QK maximum", *maxima(exact, above), EQUAL).passed
    assert not row(1, "QK maximum", *maxima(exact, None), EQUAL).passed


def test_fp32_promises_what_the_documentation_says():
    stated = tolerances("xla_cpu", Precision.fp32, MuonClipRecipe())
    assert stated is FP32 and tolerances("tpu", Precision.fp32, MuonClipRecipe()) is FP32
    limits = {name: bound.limit for name, bound in stated.bounds.items()}
    assert limits == {
        "loss": 2e-6, "grad norm": 1e-6, "clip coef": 1e-6, "QK maximum": 1e-5, "gradients": 1e-7, "weights": 2e-6,
        "slots": 1e-5,
    }  # fmt: skip
    assert all(bound.reason for bound in stated.bounds.values())
    with pytest.raises(ConfigError, match=r"hardware\.kind=abacus: no tolerances are stated"):
        tolerances("abacus", Precision.fp32, AdamWRecipe())


def test_adamws_rate_moves_the_bound_of_the_weights_and_nothing_tightens_it():
    def weight(recipe):
        return tolerances("xla_cpu", Precision.fp32, recipe).weight.limit

    assert weight(MuonClipRecipe(aux=AuxRecipe(lr=2.4e-3))) == pytest.approx(8e-6)
    assert weight(MuonClipRecipe(aux=AuxRecipe(lr=1e-5))) == 2e-6
    assert weight(AdamWRecipe(lr=6e-4)) == pytest.approx(6e-6)


def test_the_worst_of_equals_is_the_earliest(small):
    parity = parity_of(small, lambda engine: Perturbed(engine, "compiles", lambda count: count + engine.step))
    assert [found.step for found in parity.failures] == [2, 3] and parity.worst.step == 2


def test_a_row_says_what_when_where_and_how_much():
    found = Row(4, "weights", "transformer.wpe.weight", None, None, 3.21e-6, 1e-4, FP32.weight)
    assert str(found) == "weights after step 4 (transformer.wpe.weight): 3.2e-06, tolerance 2e-06"
    assert (
        str(replace(found, step=0, part="", bound=EQUAL)) == "weights before the first step: 3.2e-06, tolerance equal"
    )


@dataclass
class Command:
    """`gpt2exp verify hardware=cpu` on the small comparison, the second engine replaced."""

    cli: object
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, change=lambda engine: engine, *overrides):
        def other(cfg, source):
            return change(assembly.torch_engine(cfg, source, 1))

        self.monkeypatch.setattr(engine_parity, "deferred", other)
        return self.cli("verify", "hardware=cpu", *SMALL, *overrides)


@pytest.fixture
def command(cli, monkeypatch):
    return Command(cli, monkeypatch)


TITLES = ["tolerances", "before the first update", "updates", "weights and optimizer state", "evaluation"]


def test_the_tables_are_printed_in_order_and_the_verdict_last(command, tmp_path):
    done = command()
    assert (done.status, done.err) == (0, "")
    sections = done.out.split("\n\n")
    assert [section.startswith(title) for section, title in zip(sections[1:], TITLES, strict=False)] == [True] * 5
    head, bounds, before, updates, states, evaluation, verdict = sections
    assert "against the reference, torch on the CPU, in fp32" in head and "reference  -" in head
    assert [len(section.splitlines()) for section in (bounds, before, updates, states, evaluation)] == [9, 4, 8, 26, 8]
    assert updates.splitlines()[1].split()[:3] == ["step", "lr", "factor"]
    assert [line.split()[1] for line in updates.splitlines()[2:]] == [f"{factor:g}" for factor in LR_FACTORS]
    assert verdict == "all 85 comparisons within tolerance\n"
    assert "<--" not in done.out and not any(line.endswith(" ") for line in done.out.splitlines())
    assert list(tmp_path.iterdir()) == [], "verify writes nothing"


def test_the_line_of_a_failure_is_marked_and_the_verdict_names_the_worst(command):
    change = state_of("weights", EMBEDDING, one_element(1e-3))
    done = command(lambda engine: Perturbed(engine, "state", change, 5))
    assert done.status == 5
    (problem,) = done.problems
    assert problem.startswith("verify hardware=cpu: 2 of 85 comparisons out of tolerance; worst: weights after step ")
    assert EMBEDDING in problem and "tolerance 2e-06" in problem and "within tolerance" not in done.out
    marked = [line.split() for line in done.out.splitlines() if "<--" in line]
    assert [(cells[0], cells[1], cells[-1]) for cells in marked] == [(step, "weights", "weights") for step in "56"]


def test_counts_that_differ_are_shown_side_by_side(command):
    done = command(lambda engine: Perturbed(engine, "drain", in_qk(clipped_heads=lambda heads: 99), 6))
    (line,) = [line for line in done.out.splitlines() if "<--" in line]
    assert re.search(r"\d \| 99 ", line) and line.endswith("<-- clipped heads")


def test_a_narrow_terminal_cuts_nothing(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    text = text_of(table(("step", "grad norm", "why"), [("1", "1.10687", "words and more words")]))
    assert text.splitlines()[1] == "   1    1.10687  words and more words"


def test_an_optimizer_without_a_qk_clip_has_dashes_there(command):
    done = command(lambda engine: engine, "optimizer=adamw", "schedule.num_steps=2")
    assert done.status == 0 and "all 27 comparisons within tolerance" in done.out
    assert "momentum_buffer" not in done.out
    (line,) = [line for line in done.out.splitlines() if line.startswith("   1        0.5")]
    assert line.split()[-5:] == ["-", "-", "-", "0", "0"]


def test_the_deferred_engine_on_the_cpu_is_the_reference_within_tolerance(cli):
    """Nothing replaced: the command as users run it."""
    done = cli("verify", "hardware=cpu", "hardware.threads=1")
    assert done.status == 0, done.err
    assert "commit deferred" in done.out and done.out.endswith("all 85 comparisons within tolerance\n")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["model=nano"], 2, "verify model=nano: name the engine to verify, hardware=KIND"),
        (["hardware=cppu"], 2, "did you mean hardware=cpu?"),
        (["hardware=cpu", "precision=bf16"], 2, "verify with precision=fp32 or fp64"),
        (["hardware=cpu", "--keep", "x=1"], 2, "unknown flag --keep"),
        (["hardware=cpu", "schedule.tokens_per_step=100"], 2, "must be a multiple of schedule.context_length=32"),
        (["hardware=cpu", "upstream"], 2, "'upstream'"),
        (["hardware=cpu", "model.source=llmc", "model.path=nowhere.py"], 3, "nowhere.py"),
    ],
)
def test_mistakes_are_answered_in_one_line(cli, arguments, status, words):
    done = cli("verify", *arguments)
    assert done.status == status and len(done.problems) == 1 and words in done.problems[0]


@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is not None, reason="torch_xla is installed")
def test_without_torch_xla_the_extra_is_named(cli):
    done = cli("verify", "hardware=xla_cpu")
    assert done.status == 3 and len(done.problems) == 1 and "gpt2exp[xla]" in done.problems[0]


def test_defaults_give_way_to_every_choice():
    def configured(*overrides):
        return verify.configuration(["hardware=cpu", *overrides])

    default = configured()
    assert default.optimizer.lr == default.optimizer.weight_decay, "two scalars of a step are equal"
    assert configured("optimizer=sgd").optimizer.kind == "sgd"
    assert configured("optimizer.qk_clip_threshold=7").optimizer.qk_clip_threshold == 7
    assert configured("model=nano", "hardware.micro_batch_size=4").hardware.micro_batch_size == 4
    assert configured("data=text", "data.paths=[x.txt]").data.kind == "text"


@pytest.mark.parametrize("preset", [file.stem for file in sorted(shipped("conf").glob("preset/*.yaml"))])
def test_a_presets_model_optimizer_and_schedule_are_verified(preset):
    cfg = verify.configuration(["hardware=cpu", f"preset={preset}"])
    chosen = quickly(f"preset={preset}", "data=synthetic", "evaluation=off", "evaluation.every=null")
    assert (cfg.model, cfg.optimizer, cfg.schedule) == (chosen.model, chosen.optimizer, chosen.schedule)
    assert (cfg.data.kind, cfg.evaluation.every, cfg.tracking.every) == ("synthetic", None, None)


def test_a_schedule_chosen_by_name_does_not_last_for_days():
    chosen = ["hardware=cpu", "model=gpt2", "schedule=gpt2_fineweb"]
    assert verify.steps_of(verify.configuration(chosen), chosen) == 6
    asked = [*chosen, "schedule.num_steps=900"]
    assert verify.steps_of(verify.configuration(asked), asked) == 900


def test_training_in_bf16_is_verified_in_fp32_unless_asked_otherwise():
    assert quickly("hardware=tpu_v5e_4").precision is Precision.bf16
    assert verify.configuration(["hardware=tpu_v5e_4"]).precision is Precision.fp32
    assert verify.configuration(["hardware=tpu_v5e_4", "precision=bf16"]).precision is Precision.bf16


def test_the_reference_takes_the_micro_batch_of_all_devices_together():
    cfg = on_reference(verify.configuration(["hardware=xla_cpu", "hardware.micro_batch_size=2"]))
    assert (cfg.hardware.kind, cfg.hardware.devices, cfg.hardware.micro_batch_size) == ("cpu", 1, 8)
    assert cfg.hardware.orthogonalizer.name == "ns"
