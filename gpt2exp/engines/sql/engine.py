"""The SQL engine: the same updates as the PyTorch engine, stated as queries; NumPy only carries tensors in and out.

What is guaranteed about bits: one thread, joins in the order they are written, unions part after part and tables in
the order of their keys make every sum a function of the tables' contents, the statements and the libraries' versions.
The same state gives the same next state in another engine or process; a replayed program gives the same bits as a
rewritten one. DuckDB and DataFusion add in different orders and agree to rounding only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpt2exp.config import ModelConfig
from gpt2exp.data.windows import Window
from gpt2exp.engines.base import Array, EngineState, EvalRecord, QKRecord, UpdateRecord, mismatches
from gpt2exp.engines.sql import program
from gpt2exp.engines.sql.arrays import batch, keys_of, to_column, to_tensors
from gpt2exp.engines.sql.hosts import Host, versions
from gpt2exp.engines.sql.model import evaluation, forward
from gpt2exp.engines.sql.optimizers import clip, gradient_norm, rescale, update
from gpt2exp.engines.sql.replay import Gradients
from gpt2exp.engines.sql.tables import Table, tables
from gpt2exp.engines.sql.update import by_tables
from gpt2exp.errors import ConfigError
from gpt2exp.optim.base import Clip, GroupRule, TensorInfo
from gpt2exp.optim.param_groups import assign
from gpt2exp.optim.qk_clip import QKClip

Scalars = Mapping[str, Mapping[str, float]]


class SqlEngine:
    """Trains the GPT on a `host` from `weights`; implements `gpt2exp.engines.base.Engine` in float64."""

    def __init__(
        self,
        model: ModelConfig,
        weights: Mapping[str, Array],
        groups: Sequence[GroupRule],
        host: Host,
        *,
        micro_batch_size: int,
        clip: Clip,
        qk_clip: QKClip | None = None,
        measure_every: int = 1,
        replay: bool = True,
    ) -> None:
        self.model = model
        self.host = host
        self.micro_batch_size = micro_batch_size
        self.clip = clip
        self.qk_clip = qk_clip
        self.measure_every = measure_every
        self.tables = tables(model)
        self.names = tuple(weights)
        owned = assign(groups, [TensorInfo(name, array.shape) for name, array in weights.items()])
        self.groups = [by_tables(g, self.tables, self._clips(g.name)) for g in owned]
        self.gradients_of = Gradients(host, ["batch", *(table.name for table in self.tables)], replay)
        self.step = 0
        self._records: list[UpdateRecord] = []
        self._slots = {t.name: g.rule.slots for g in self.groups for t in g.tables}
        self._slot_names = [f"{slot}/{t.name}" for g in owned for slot in g.rule.slots for t in g.tensors]
        shapes = {name: array.shape for name, array in weights.items()}
        self._signature: dict[str, tuple[Any, Any]] = {name: (shape, "float64") for name, shape in shapes.items()}
        self._slot_signature: dict[str, tuple[Any, Any]] = {
            name: (shapes[name.partition("/")[2]], "float64") for name in self._slot_names
        }
        zeros = {name: np.zeros(shapes[name.partition("/")[2]]) for name in self._slot_names}
        self._fill(weights, zeros)

    def update(self, step: int, window: Window, lr_factor: float) -> None:
        """One update from the mean gradient over the window's rows."""
        self.host.deadline.start()
        loss, maxima_LH = self._accumulate(window)
        self.host.store(gradient_norm(self.tables))
        norm = float(self.host.fetch("SELECT norm FROM grad_norm")["norm"][0])
        gated = not (math.isfinite(loss) and math.isfinite(norm) and bool(np.isfinite(maxima_LH).all()))
        scalars = {group.name: group.rule.step_scalars(step, lr_factor) for group in self.groups}
        coef, update_rms = 1.0, {}
        if not gated:
            self._schedule(scalars)
            coef = self._clip()
            update_rms = self._apply(scalars, step % self.measure_every == 0)
        lr = {name: values["lr"] for name, values in scalars.items()}
        qk = self._rescale(maxima_LH, gated)
        self._records.append(UpdateRecord(step, loss, norm, coef, lr, gated, update_rms, qk))
        self.step = step

    def drain(self) -> list[UpdateRecord]:
        """Records since the last drain."""
        records, self._records = self._records, []
        return records

    def evaluate(self, windows: Iterable[Window]) -> EvalRecord:
        """Losses, their sums and the model's choices, all in SQL."""
        loss_sum, wrong, tokens, batches, sum_of_means = 0.0, 0, 0, 0, 0.0
        *before, last = evaluation(self.model)
        for part in self._micro_batches(windows):
            self.host.deadline.start()
            self._load_batch(part)
            found = self.host.fetch(last.sql, before)
            loss_sum += float(found["loss_sum"][0])
            tokens += int(found["targets"][0])
            wrong += int(found["targets"][0]) - int(found["correct"][0])
            sum_of_means += float(found["mean_loss"][0])
            batches += 1
        return EvalRecord(loss_sum, wrong, tokens, sum_of_means / batches)

    def logits(self, tokens_T: Array) -> Array:
        """Next-token logits_V after `tokens_T`."""
        tokens_1T = np.asarray(tokens_T, dtype=np.int64)[None, :]
        self.host.deadline.start()
        self._load_batch(Window(tokens_1T, tokens_1T))
        last = tokens_1T.shape[1] - 1
        return self.host.fetch(f"SELECT token, x FROM logits WHERE pos = {last} ORDER BY token", forward(self.model))[
            "x"
        ]

    def gradients(self, window: Window) -> dict[str, Array]:
        """Mean gradient over the window's rows, by upstream's names, before clipping; nothing moves."""
        self.host.deadline.start()
        self._accumulate(window)
        return self._tensors([self._column(t.grad, t, "g") for t in self.tables])

    def compiles(self) -> int:
        """Nothing is compiled."""
        return 0

    def weights(self) -> dict[str, Array]:
        """Copies, in the model's parameter order."""
        return self._tensors([self._column(t.name, t, "w") for t in self.tables])

    def state(self) -> EngineState:
        """Copies of weights and slots."""
        found = {
            f"{slot}/{name}": array
            for table in self.tables
            for slot in self._slots[table.name]
            for name, array in to_tensors(table, self._column(table.state, table, slot)).items()
        }
        return EngineState(self.step, self.weights(), {name: found[name] for name in self._slot_names})

    def load(self, state: EngineState) -> None:
        """Continue from `state`.

        Raises:
            ConfigError: naming every tensor that is missing, foreign, or of another shape or dtype.
        """
        problems = mismatches("weight", state.weights, self._signature)
        problems += mismatches("slot", state.slots, self._slot_signature)
        if problems:
            raise ConfigError(problems)
        self._fill(state.weights, state.slots)
        self.step = state.step
        self._records.clear()

    def executors(self) -> dict[str, Any]:
        """Host, versions, micro-batch; `orthogonalizer` is the plain iteration."""
        return {
            "engine": "sql",
            "device": self.host.name,
            "devices": 1,
            "ranks": 1,
            "threads": 1,
            "orthogonalizer": "ns",
            **versions(),
            "micro_batch_size": self.micro_batch_size,
            "numpy": np.__version__,
        }

    def close(self) -> None:
        """End the connection."""
        self.host.close()

    def _fill(self, weights: Mapping[str, Array], slots: Mapping[str, Array]) -> None:
        for table in self.tables:
            keys = keys_of(table)
            self.host.load(table.name, table.dims, {**keys, "w": to_column(table, weights)})
            self.host.load(table.grad, table.dims, {**keys, "g": np.zeros(table.rows)})
            columns = {
                slot: to_column(table, {name: slots[f"{slot}/{name}"] for name in table.tensors})
                for slot in self._slots[table.name]
            }
            if columns:
                self.host.load(table.state, table.dims, {**keys, **columns})

    def _accumulate(self, window: Window) -> tuple[float, Array]:
        """Mean gradients into `<table>_grad`; the mean loss, and the largest logit of each head, maxima_LH."""
        parts, losses, maxima = list(self._micro_batches([window])), [], []
        steps = program.gradients(self.model, self.tables)
        for i, part in enumerate(parts):
            self._load_batch(part)
            if self.qk_clip is not None:
                maxima.append(self._maxima(self.qk_clip))
            loss, columns = self.gradients_of.run(steps)
            losses.append(loss / len(parts))
            self._gather(columns, i, len(parts))
        return sum(losses), np.max(maxima, axis=0) if maxima else np.zeros((0, 0))

    def _gather(self, columns: Sequence[Array], i: int, count: int) -> None:
        for table, column in zip(self.tables, columns, strict=True):
            target = table.grad if count == 1 else table.part
            self.host.load(target, table.dims, {**keys_of(table), "g": column})
            if count > 1:
                self.host.store(program.accumulate(table, count, first=i == 0))

    def _maxima(self, clip: QKClip) -> Array:
        """The largest logit of each layer and head over the batch, by forward statements alone."""
        before, select = program.largest_logits(self.model, clip.max_logit)
        return self.host.fetch(select, before)["x"].reshape(self.model.n_layer, self.model.n_head)

    def _schedule(self, scalars: Scalars) -> None:
        columns = program.schedule(scalars)
        self.host.load("schedule", ("owner",), columns)
        found = self.host.fetch("SELECT * FROM schedule")
        assert found.pop("owner").tolist() == columns["owner"].tolist(), "schedule: rows in another order"
        for name, column in found.items():
            assert column.tobytes() == columns[name].tobytes(), f"schedule.{name}: other bits than were computed"

    def _clips(self, group: str) -> bool:
        return bool(self.clip.max_norm) and group.startswith(self.clip.scope)

    def _clip(self) -> float:
        scope = [table for group in self.groups if group.clipped for table in group.tables]
        if not scope:
            return 1.0
        self.host.store(clip(scope, self.clip))
        return float(self.host.fetch("SELECT coef FROM clip")["coef"][0])

    def _apply(self, scalars: Scalars, measured: bool) -> dict[str, float]:
        """Every group's statements; where `measured`, the root mean square of what each moved beside its decay."""
        update_rms = {}
        for group in self.groups:
            before = [self._column(t.name, t, "w") for t in group.tables] if measured else []
            for step in update(group):
                self.host.store(step)
            if measured:
                keep = scalars[group.name].get("keep", 1.0)
                after = [self._column(t.name, t, "w") for t in group.tables]
                moved = np.concatenate([b * keep - a for a, b in zip(after, before, strict=True)])
                update_rms[group.name] = math.sqrt(float(np.mean(moved * moved)))
        return update_rms

    def _rescale(self, maxima_LH: Array, gated: bool) -> QKRecord | None:
        """The QK clip's step after the rule."""
        if self.qk_clip is None:
            return None
        over = 0 if gated else int((maxima_LH > self.qk_clip.threshold).sum())
        if over:
            self.host.load("qk_max", ("layer", "h"), program.by_head(maxima_LH))
            for table in self.tables:
                if table.name in ("w_qkv", "b_qkv"):
                    self.host.store(rescale(table, self.qk_clip))
        layers = len(maxima_LH)
        return QKRecord(tuple(float(x) for x in maxima_LH.max(axis=1)), ("exact",) * layers, over)

    def _micro_batches(self, windows: Iterable[Window]) -> Iterator[Window]:
        size = self.micro_batch_size
        for window in windows:
            for i in range(0, len(window.inputs_NT), size):
                yield Window(window.inputs_NT[i : i + size], window.targets_NT[i : i + size])

    def _load_batch(self, window: Window) -> None:
        self.host.load("batch", ("b", "pos"), batch(window))

    def _column(self, name: str, table: Table, value: str) -> Array:
        return self.host.fetch(f"SELECT {table.keys}, {value} FROM {name} ORDER BY {table.keys}")[value]

    def _tensors(self, columns: Sequence[Array]) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for table, column in zip(self.tables, columns, strict=True):
            found.update(to_tensors(table, column))
        return {name: found[name] for name in self.names}
