"""An engine against the CPU torch reference: same seed, data and precision, step by step, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast

import numpy as np

from gpt2exp import assembly
from gpt2exp.config import Config
from gpt2exp.data.windows import Window, evaluation_windows
from gpt2exp.derived import derive
from gpt2exp.engines.base import Array, Engine, QKRecord, UpdateRecord
from gpt2exp.engines.tolerances import EQUAL, Bound, Measure, Tolerances, tolerances
from gpt2exp.models.upstream import SourceFile
from gpt2exp.optim.orthogonalize import OrthogonalizerKind
from gpt2exp.optim.registry import optimizers

LR_FACTORS = (0.5, 1.0, 0.0, 0.75, 1.0, 0.25)
"""Warm-up, the peak, and exactly 0 after other values: compilers like to make constants of 0 and 1."""
EVALUATION_ROWS = 22
"""Not a multiple of any usual batch: the last window is short, and uneven over devices."""

Arrays = Mapping[str, Array]


class Verifiable(Engine, Protocol):
    """An engine that shows its gradients and counts its compilations."""

    def gradients(self, window: Window) -> dict[str, Array]:
        """The mean gradient over the window's rows, by upstream's names, before clipping; nothing moves."""

    def compiles(self) -> int:
        """Compilations so far; 0 where nothing is compiled."""


@dataclass(frozen=True, eq=False)
class Work:
    """What both engines are given: a window and a factor for each step, and the evaluation's windows."""

    windows: tuple[Window, ...]
    lr_factors: tuple[float, ...]
    evaluation: tuple[Window, ...]


@dataclass(frozen=True)
class Row:
    """One comparison: a quantity after `step` (0: before the first update), largest differences over its parts.

    `part` is the tensor, layer or group that is furthest out; `reference` and `found` are its values where it is a
    single number. `shares` are all parts' largest differences as shares of their largest magnitudes.
    """

    step: int
    quantity: str
    part: str
    reference: float | None
    found: float | None
    absolute: float
    of_largest: float
    bound: Bound
    shares: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def measured(self) -> float:
        """What is held against the limit."""
        return self.absolute if self.bound.measure is Measure.absolute else self.of_largest

    @property
    def passed(self) -> bool:
        """Within tolerance; the limit itself is within."""
        return self.measured <= self.bound.limit

    @property
    def excess(self) -> float:
        """How many times the limit."""
        if self.bound.limit:
            return self.measured / self.bound.limit
        return float("inf") if self.measured else 0.0

    def __str__(self) -> str:
        when = f"after step {self.step}" if self.step else "before the first step"
        where = f" ({self.part})" if self.part else ""
        return f"{self.quantity} {when}{where}: {self.measured:.2g}, tolerance {self.bound}"


@dataclass(frozen=True, eq=False)
class Parity:
    """Everything that was compared. `records` are the reference's, `compiles` the other engine's, one a step.

    `tables` are those of a SQL engine with the tensors that each holds; none for other engines.
    """

    tolerances: Tolerances
    reference: Mapping[str, Any]
    other: Mapping[str, Any]
    lr_factors: tuple[float, ...]
    records: tuple[UpdateRecord, ...]
    compiles: tuple[int, ...]
    rows: tuple[Row, ...]
    tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def failures(self) -> list[Row]:
        """Comparisons out of tolerance, in the order they were made."""
        return [row for row in self.rows if not row.passed]

    @property
    def worst(self) -> Row | None:
        """The failure furthest beyond its limit; of equals the earliest."""
        return max(self.failures, key=lambda row: row.excess, default=None)


def verify_engine(cfg: Config, steps: int = 6) -> Parity:
    """Compare the engine that `cfg.hardware` asks for with the CPU torch reference.

    On `hardware=cpu`, where the engine is the reference itself, the executor that takes its decisions on the device
    is compared instead.

    Args:
        cfg: the configuration; its schedule gives batch and context, the learning rate follows LR_FACTORS.
        steps: updates to compare.

    Raises:
        ConfigError: no tolerances are stated for this hardware and precision, or the configuration does not fit.
        RefusedError: the environment lacks what the hardware needs.
    """
    bounds = tolerances(cfg.hardware.kind, cfg.precision, cfg.optimizer, cfg.model.bias)
    other = cast(Verifiable, assembly.assemble(cfg, Path.cwd()).engine) if cfg.hardware.kind != "cpu" else None
    on_cpu = on_reference(cfg)
    parts = assembly.assemble(on_cpu, Path.cwd())
    reference, other = cast(Verifiable, parts.engine), other or deferred(on_cpu, parts.inputs.source)
    try:
        return compare(reference, other, work(on_cpu, parts.inputs, steps), bounds, tables_of(cfg))
    finally:
        reference.close()
        other.close()


def tables_of(cfg: Config) -> dict[str, tuple[str, ...]]:
    """A SQL engine's tables, each with the tensors that it holds; none for other engines."""
    from gpt2exp.engines.sql.tables import tables
    from gpt2exp.rules import ENGINES

    return {table.name: table.tensors for table in tables(cfg.model)} if ENGINES[cfg.hardware.kind].sql else {}


def on_reference(cfg: Config) -> Config:
    """The same run on one CPU with plain Newton-Schulz; a micro-batch is what all devices take at once."""
    hardware = cfg.hardware
    rows = hardware.micro_batch_size and hardware.micro_batch_size * hardware.devices
    plain = replace(hardware, kind="cpu", devices=1, micro_batch_size=rows, orthogonalizer=OrthogonalizerKind.ns)
    return replace(cfg, hardware=plain)


def deferred(cfg: Config, source: SourceFile | None) -> Verifiable:
    """On the CPU, the engine that takes its decisions on the device: what accelerators run, without one."""
    from gpt2exp.engines.torch.backends.eager import EagerBackend
    from gpt2exp.engines.torch.deferred import DeferredEngine
    from gpt2exp.models.build import build

    optimizer = optimizers()[cfg.optimizer.kind]
    return DeferredEngine(
        build(cfg.model, cfg.seed, source),
        optimizer.groups(cfg.optimizer, cfg.model.n_head),
        EagerBackend(cfg.precision, cfg.hardware.threads),
        micro_batch_size=cfg.hardware.micro_batch_size or derive(cfg).rows_per_step,
        clip=optimizer.clip(cfg.optimizer),
        qk_clip=optimizer.qk_clip(cfg.optimizer),
        measure_every=cfg.logging.log_every,
    )


def work(cfg: Config, inputs: assembly.Inputs, steps: int) -> Work:
    """Training windows from the first on, and the first rows of the validation split."""
    context = cfg.schedule.context_length
    rows = min(EVALUATION_ROWS, (inputs.corpus.val.num_tokens - 1) // context)
    at_once = cfg.hardware.micro_batch_size or EVALUATION_ROWS
    return Work(
        tuple(inputs.windows.window(it) for it in range(steps)),
        tuple(islice(cycle(LR_FACTORS), steps)),
        tuple(evaluation_windows(inputs.corpus.val, rows * context, context, at_once)),
    )


def compare(
    reference: Verifiable,
    other: Verifiable,
    given: Work,
    bounds: Tolerances,
    tables: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Parity:
    """Initial weights, one accumulated gradient (with `tables` each one), every update, evaluation before and after."""
    rows = [row(0, "initial weights", reference.weights(), other.weights(), EQUAL)]
    first = given.windows[0]
    rows.append(row(0, "gradients", reference.gradients(first), other.gradients(first), bounds.gradient))
    rows += evaluation_rows(0, reference, other, given.evaluation, bounds)
    records, compiles = [], []
    for step, (window, factor) in enumerate(zip(given.windows, given.lr_factors, strict=True), start=1):
        if tables:
            rows.append(row(step, "gradients", reference.gradients(window), other.gradients(window), bounds.gradient))
        expected, _ = updated(reference, step, window, factor)
        found, compiled = updated(other, step, window, factor)
        records.append(expected)
        compiles.append(compiled)
        rows += record_rows(expected, found, bounds)
        rows += state_rows(step, reference, other, bounds)
        rows += [row(step, "compilations", single(0), single(compiled), EQUAL)] if step > 1 else []
    rows += evaluation_rows(len(records), reference, other, given.evaluation, bounds)
    return Parity(
        bounds, reference.executors(), other.executors(), given.lr_factors, tuple(records), tuple(compiles),
        tuple(rows), tables,
    )  # fmt: skip


def updated(engine: Verifiable, step: int, window: Window, lr_factor: float) -> tuple[UpdateRecord, int]:
    """One update: its record and how many compilations it took."""
    before = engine.compiles()
    engine.update(step, window, lr_factor)
    (record,) = engine.drain()
    return record, engine.compiles() - before


def record_rows(reference: UpdateRecord, found: UpdateRecord, bounds: Tolerances) -> list[Row]:
    """What one update reported."""
    step = reference.step
    rows = [
        row(step, "step", single(step), single(found.step), EQUAL),
        row(step, "loss", single(reference.loss), single(found.loss), bounds.loss),
        row(step, "grad norm", single(reference.grad_norm), single(found.grad_norm), bounds.grad_norm),
        row(step, "clip coef", single(reference.clip_coef), single(found.clip_coef), bounds.clip_coef),
        row(step, "lr", numbers(reference.lr), numbers(found.lr), EQUAL),
        row(step, "gated", single(reference.gated), single(found.gated), EQUAL),
    ]
    if reference.qk or found.qk:
        rows.append(row(step, "QK maximum", *maxima(reference.qk, found.qk), bounds.qk_maximum))
        rows.append(row(step, "clipped heads", clipped(reference.qk), clipped(found.qk), EQUAL))
    return rows


def state_rows(step: int, reference: Verifiable, other: Verifiable, bounds: Tolerances) -> list[Row]:
    """Weights and each kind of slot after a step."""
    expected, found = reference.state(), other.state()
    rows = [row(step, "weights", expected.weights, found.weights, bounds.weight)]
    for slot in dict.fromkeys(key.partition("/")[0] for key in (*expected.slots, *found.slots)):
        rows.append(row(step, slot, of_slot(expected.slots, slot), of_slot(found.slots, slot), bounds.slot))
    return rows


def evaluation_rows(
    step: int, reference: Verifiable, other: Verifiable, windows: Sequence[Window], bounds: Tolerances
) -> list[Row]:
    """Validation loss, and token errors counted."""
    expected, found = reference.evaluate(windows), other.evaluate(windows)
    return [
        row(step, "val loss", single(expected.val_loss), single(found.val_loss), bounds.loss),
        row(step, "wrong tokens", single(expected.wrong_tokens), single(found.wrong_tokens), EQUAL),
        row(step, "target tokens", single(expected.target_tokens), single(found.target_tokens), EQUAL),
    ]


def row(step: int, quantity: str, reference: Arrays, found: Arrays, bound: Bound) -> Row:
    """Compare two sets of arrays by name; a name that only one of them has is infinitely far out."""
    names = list(dict.fromkeys((*reference, *found)))
    gaps = {name: difference(reference.get(name), found.get(name)) for name in names}
    absolute, of_largest = (max((gap[i] for gap in gaps.values()), default=0.0) for i in range(2))
    governing = 0 if bound.measure is Measure.absolute else 1
    part = max(names, key=lambda name: gaps[name][governing], default="")
    values = (number(reference.get(part)), number(found.get(part)))
    shares = {name: share for name, (_, share) in gaps.items()}
    return Row(step, quantity, part, *values, absolute, of_largest, bound, shares)


def difference(reference: Array | None, found: Array | None) -> tuple[float, float]:
    """The largest absolute difference, and as a share of the reference's largest magnitude.

    Infinite for a missing array, another shape, and wherever one of the two alone is not a number.
    """
    if reference is None or found is None or reference.shape != found.shape:
        return float("inf"), float("inf")
    expected, got = reference.astype(np.float64), found.astype(np.float64)
    differs = (expected != got) & ~(np.isnan(expected) & np.isnan(got))
    if not differs.any():
        return 0.0, 0.0
    gap = float(np.abs(expected[differs] - got[differs]).max())
    largest = float(np.abs(expected).max())
    if not np.isfinite(gap) or not np.isfinite(largest):
        return float("inf"), float("inf")
    return gap, gap / largest if largest else float("inf")


def single(value: float) -> Arrays:
    """A number as a set of arrays."""
    return {"": np.array(value, dtype=np.float64)}


def numbers(values: Mapping[str, float]) -> Arrays:
    """Numbers by name as a set of arrays."""
    return {name: np.array(value, dtype=np.float64) for name, value in values.items()}


def number(array: Array | None) -> float | None:
    """The value of an array that is a single number."""
    return float(array) if array is not None and array.ndim == 0 else None


def clipped(qk: QKRecord | None) -> Arrays:
    """How many heads were clipped; nothing where nothing was watched."""
    return single(qk.clipped_heads) if qk else {}


def maxima(reference: QKRecord | None, found: QKRecord | None) -> tuple[Arrays, Arrays]:
    """The largest logit by layer; where one engine knows a bound only, the other agrees with it by being below."""
    expected, got = logits(reference), logits(found)
    if reference is None or found is None:
        return expected, got
    for layer, kinds in zip(expected, zip(reference.kinds, found.kinds, strict=False), strict=False):
        below = got[layer] <= expected[layer] if kinds[0] == "bound" else expected[layer] <= got[layer]
        if kinds[0] != kinds[1] and below:
            got = {**got, layer: expected[layer]}
    return expected, got


def logits(qk: QKRecord | None) -> dict[str, Array]:
    """Maxima by name of the layer."""
    return {f"layer {i}": np.array(value) for i, value in enumerate(qk.maxima)} if qk else {}


def of_slot(slots: Arrays, slot: str) -> Arrays:
    """The tensors of one kind of slot, by parameter."""
    return {key.partition("/")[2]: array for key, array in slots.items() if key.partition("/")[0] == slot}
