"""The checks themselves: each returns what it found, and what later checks need of it.

A check that fails raises one of our errors; `Checklist` turns whatever else a device throws into one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from gpt2exp import assembly
from gpt2exp.assembly import Inputs, Parts
from gpt2exp.config import Config
from gpt2exp.data.windows import Window, evaluation_windows
from gpt2exp.derived import derive, probe_tokens
from gpt2exp.engines.base import Array, Engine, UpdateRecord
from gpt2exp.engines.tolerances import Bound
from gpt2exp.engines.torch.hlo import imprecise
from gpt2exp.errors import DataError, Gpt2ExpError, RefusedError
from gpt2exp.identity import needs_upstream
from gpt2exp.models import upstream
from gpt2exp.models.build import build
from gpt2exp.models.inventory import LM_HEAD, WTE, parameter_count
from gpt2exp.models.upstream import SourceFile
from gpt2exp.optim.base import TensorInfo
from gpt2exp.optim.param_groups import assign
from gpt2exp.optim.registry import optimizers
from gpt2exp.preflight import memory, parity
from gpt2exp.preflight.parity import Distance
from gpt2exp.preflight.stamp import Result
from gpt2exp.projection import check_disk, checkpoint_bytes, size, tracking_bytes
from gpt2exp.train.progress import clock
from gpt2exp.verbs import audit
from gpt2exp.verbs.check import equivalent_tokens

T = TypeVar("T")
UPDATES = 3
"""The first may compile, the second must not need to, the third is timed with everything warm."""
READ_ROWS = 256
"""Rows of the evaluation range looked at in one go."""


class Tried(Engine, Protocol):
    """What a preflight asks of an engine beside training."""

    @property
    def model(self) -> Any:
        """The module on the device."""

    def gradients(self, window: Window) -> dict[str, Array]:
        """Mean gradient over the window's rows, by upstream's names; nothing is kept of it."""

    def compiles(self) -> int:
        """Graphs compiled so far."""


@dataclass(frozen=True)
class Updates:
    """What the full-size updates took: seconds and compilations of each."""

    seconds: tuple[float, ...]
    compiles: tuple[int, ...]

    @property
    def warm(self) -> float:
        """Seconds of an update when nothing is left to compile."""
        return self.seconds[-1]


class Checklist:
    """Runs checks, says one line for each, and keeps the results."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self.say = say
        self.results: list[Result] = []

    def run(self, name: str, check: Callable[[], tuple[T, str]]) -> T:
        """The value of a check that passes.

        Raises:
            Gpt2ExpError: it failed.
        """
        started = time.perf_counter()
        try:
            value, found = check()
        except Gpt2ExpError as error:
            self._add(Result(name, False, str(error), time.perf_counter() - started))
            raise
        except (AssertionError, RuntimeError, MemoryError) as error:
            problem = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
            self._add(Result(name, False, problem, time.perf_counter() - started))
            raise RefusedError(f"preflight: {name}: {problem}") from error
        self._add(Result(name, True, found, time.perf_counter() - started))
        return value

    def _add(self, result: Result) -> None:
        self.results.append(result)
        self.say(f"{'pass' if result.passed else 'FAIL'}  {result.name:<14}  {result.found}  ({result.seconds:.1f} s)")


def model_file(cfg: Config) -> tuple[SourceFile | None, str]:
    """The file's SHA256, and the model it builds against the inventory."""
    source = upstream.locate(cfg.model.path) if needs_upstream(cfg) else None
    audit.check(cfg.model)
    origin = f"{source.path}, SHA256 {source.sha256}" if source else "reference GPT"
    return source, f"{origin}; {parameter_count(cfg.model):,} parameters, as in the inventory"


def data(cfg: Config) -> tuple[Inputs, str]:
    """Corpus and budget; the digest that identifies both splits."""
    inputs = assembly.resolve(cfg)
    corpus = inputs.corpus
    counts = f"{corpus.train.num_tokens:,} training and {corpus.val.num_tokens:,} validation tokens"
    return inputs, f"{corpus.name}, {counts}, digest {corpus.digest[:16]}"


def token_ids(cfg: Config, inputs: Inputs) -> tuple[int, str]:
    """Every id of the first and last step and of all that is evaluated lies in the vocabulary."""
    highest = 0
    for place, window in read_by_the_run(cfg, inputs):
        for ids_NT in (window.inputs_NT, window.targets_NT):
            highest = max(highest, int(ids_NT.max()))
        if highest >= cfg.model.vocab_size:
            raise DataError(
                f"preflight: token {highest} in {place}, expected below model.vocab_size={cfg.model.vocab_size}: "
                "data for another tokenizer, or damaged; choose another data set or set model.vocab_size"
            )
    return highest, f"at most {highest} of {cfg.model.vocab_size}"


def read_by_the_run(cfg: Config, inputs: Inputs) -> chain[tuple[str, Window]]:
    """First and last step, then the whole evaluation and probe range, with a name for each place."""
    steps = sorted({0, cfg.schedule.num_steps - 1})
    training = ((f"training step {step + 1}", inputs.windows.window(step)) for step in steps)
    tokens = max(cfg.evaluation.tokens if cfg.evaluation.every is not None else 0, probe_tokens(cfg))
    context = cfg.schedule.context_length
    windows = evaluation_windows(inputs.corpus.val, tokens, context, READ_ROWS) if tokens else iter(())
    return chain(training, (("the validation split", window) for window in windows))


def disk(cfg: Config, folder: Path) -> tuple[None, str]:
    """Room for checkpoints and snapshots."""
    slots = assembly.slot_count(cfg)
    check_disk(cfg, slots, folder)
    saved = cfg.checkpoint.keep + 1 if cfg.checkpoint.keep else 0
    return None, f"room for {saved} checkpoints of {size(checkpoint_bytes(cfg, slots))} and {size(tracking_bytes(cfg))}"


def memory_estimate(cfg: Config) -> tuple[int, str]:
    """Rows of a micro-batch on each device, as configured or the most that fits."""
    rows = memory.micro_batch_size(cfg)
    estimate = memory.estimate(cfg, rows)
    limit = memory.limit_bytes(cfg)
    if estimate.total > limit:
        raise RefusedError(
            f"preflight: {estimate}, but {memory.gib(limit)} may be planned with on a device of hardware.kind="
            f"{cfg.hardware.kind}; set a smaller hardware.micro_batch_size, or choose a smaller model"
        )
    return rows, f"{estimate} of {memory.gib(limit)}"


def device(cfg: Config, folder: Path, rows: int) -> tuple[Parts, str]:
    """The engine on its device, with the micro-batch that the estimate is about."""
    parts = assembly.assemble(cfg, folder)
    executors = parts.engine.executors()
    if executors["micro_batch_size"] > rows:
        parts.engine.close()
        raise RefusedError(
            f"preflight: the engine takes {executors['micro_batch_size']} rows at once, the memory estimate allows "
            f"{rows}; set hardware.micro_batch_size={rows}"
        )
    return parts, f"{executors['devices']} x {executors['device']}, {executors['device_model']}"


def tied_weights(cfg: Config, engine: Engine) -> tuple[None, str]:
    """After the move to the device, embedding and output head are one tensor, and nothing was duplicated."""
    model = cast(Tried, engine).model
    found, expected = sum(p.numel() for p in model.parameters()), parameter_count(cfg.model)
    if model.get_parameter(WTE) is not model.get_parameter(LM_HEAD) or found != expected:
        raise RefusedError(
            f"preflight: {found:,} parameters on the device, expected {expected:,}: {WTE} and {LM_HEAD} are no longer "
            "one tensor; moving the model untied them"
        )
    return None, f"{WTE} is {LM_HEAD}; {found:,} parameters"


def forward(cfg: Config, parts: Parts) -> tuple[Distance, str]:
    """Logits of a row at full context, so the attention over all of it."""
    window = parts.inputs.windows.window(0)
    distance = parity.logits_distance(cfg, parts.inputs.source, parts.engine, window)
    return distance, within("logits", distance, parity.limits(cfg.precision).logits)


def products(parts: Parts) -> tuple[dict[str, int], str]:
    """Precision of every product in a step's graphs, from their own text: a setting alone proves nothing."""
    read = getattr(parts.engine, "products", None)
    found = read(parts.inputs.windows.window(0)) if read is not None else {}
    wrong = imprecise(found)
    if wrong:
        raise RefusedError(
            f"preflight: products of {', '.join(wrong)}, expected fp32 ones at highest: torch_xla lowers them otherwise"
        )
    counted = {f"{type_} at {precision}": count for (type_, precision), count in found.items()}
    text = ", ".join(f"{count} products of {kind}" for kind, count in counted.items())
    return counted, text or "nothing is compiled on this device"


def gradients(cfg: Config, parts: Parts) -> tuple[Distance, str]:
    """Of two accumulated micro-batches over all devices, where a step has as many."""
    executors = parts.engine.executors()
    rows = min(2 * executors["micro_batch_size"] * executors["devices"], derive(cfg).rows_per_step)
    window = parity.excerpt(parts.inputs.windows.window(0), rows)
    found = cast(Tried, parts.engine).gradients(window)
    model = build(cfg.model, cfg.seed, parts.inputs.source)
    distance = parity.furthest(found, parity.reference_gradients(model, window))
    rows_text = f"gradients of {rows} rows of {window.inputs_NT.shape[1]} tokens"
    return distance, within(rows_text, distance, parity.limits(cfg.precision).gradients)


def within(what: str, distance: Distance, bound: Bound) -> str:
    """What was found, where it is near enough.

    Raises:
        RefusedError: it is not.
    """
    found = f"{what} differ from CPU fp32 by {distance.share:.1e} of the largest ({distance.name})"
    if not distance.share <= bound.limit:
        raise RefusedError(f"preflight: {found}, expected at most {bound.limit:.0e}: the device computes otherwise")
    return f"{found}; limit {bound.limit:.0e}"


def full_size_updates(cfg: Config, parts: Parts) -> tuple[Updates, str]:
    """Disposable updates at the real batch and accumulation: finite, and every group moves."""
    engine, windows = cast(Tried, parts.engine), parts.inputs.windows
    before, timed = engine.weights(), []
    for step in range(1, UPDATES + 1):
        timed.append(timed_update(engine, step, windows.window(step - 1)))
        check_update(timed[-1][0])
    moved = check_moved(cfg, before, engine.weights(), timed[0][0].lr)
    record = timed[0][0]
    rows = derive(cfg).rows_per_step
    text = f"{rows} rows: loss {record.loss:.4f}, gradient norm {record.grad_norm:.4g}, {moved} tensors moved"
    return Updates(tuple(t[1] for t in timed), tuple(t[2] for t in timed)), text


def timed_update(engine: Tried, step: int, window: Window) -> tuple[UpdateRecord, float, int]:
    """Record, seconds and compilations of one update, waited for."""
    compiled, started = engine.compiles(), time.perf_counter()
    engine.update(step, window, 1.0)
    (record,) = engine.drain()
    return record, time.perf_counter() - started, engine.compiles() - compiled


def check_update(record: UpdateRecord) -> None:
    """Refuse a gated update.

    Raises:
        RefusedError: with its numbers.
    """
    if record.gated or not np.isfinite([record.loss, record.grad_norm]).all():
        raise RefusedError(
            f"preflight: update {record.step} at the real batch is not finite: loss {record.loss:g}, gradient norm "
            f"{record.grad_norm:g}; lower optimizer.lr, or try precision=fp32"
        )


def check_moved(cfg: Config, before: Mapping[str, Array], after: Mapping[str, Array], lr: Mapping[str, float]) -> int:
    """How many tensors moved; all must be finite, and no group with a learning rate may stand still.

    Raises:
        RefusedError: naming the tensor or the group.
    """
    broken = next((name for name, array in after.items() if not np.isfinite(array).all()), None)
    if broken is not None:
        raise RefusedError(f"preflight: {broken} is not finite after {UPDATES} updates; lower optimizer.lr")
    moved = {name for name, array in after.items() if not np.array_equal(array, before[name])}
    groups = optimizers()[cfg.optimizer.kind].groups(cfg.optimizer, cfg.model.n_head)
    for group in assign(groups, [TensorInfo(name, array.shape) for name, array in before.items()]):
        if lr[group.name] and moved.isdisjoint(tensor.name for tensor in group.tensors):
            raise RefusedError(
                f"preflight: no tensor of parameter group '{group.name}' moved in {UPDATES} updates, expected all: "
                "updates do not reach the weights"
            )
    return len(moved)


def compilations(updates: Updates) -> tuple[int, str]:
    """None after the second update: a graph that changes from step to step would be compiled in every one."""
    late = sum(updates.compiles[2:])
    if late:
        raise RefusedError(
            f"preflight: {late} compilations after the second update, expected 0 (by update: "
            f"{list(updates.compiles)}): something in the step is a constant of its graph; report it"
        )
    return late, f"by update {list(updates.compiles)}, none after the second"


def projected_time(cfg: Config, updates: Updates, hours: float | None) -> tuple[float, str]:
    """Seconds of the whole budget, evaluations and the first compilation included."""
    compiling = max(0.0, updates.seconds[0] - updates.warm)
    seconds = compiling + updates.warm * equivalent_tokens(cfg) / cfg.schedule.tokens_per_step
    found = f"{clock(seconds)} for {cfg.schedule.num_steps:,} updates of {updates.warm:.3g} s and the evaluations"
    if hours is not None and seconds > hours * 3600:
        raise RefusedError(
            f"preflight: projected {found}, but --hours {hours:g} is all there is; lower schedule.num_steps, use more "
            "devices, or plan to pause and resume"
        )
    return seconds, found


def summary(results: Sequence[Result]) -> str:
    """One line for all."""
    return f"{len(results)} checks passed in {sum(result.seconds for result in results):.0f} s"
