"""Curves of runs, of llm.c's logs and of the published reference run, and what they are at equal points."""

from __future__ import annotations

import csv
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from gpt2exp.errors import DataError, StorageError
from gpt2exp.report.censoring import AXES
from gpt2exp.report.findings import CurvePoint, Foreign
from gpt2exp.report.paired import mean
from gpt2exp.report.runs import Row, Run

SMOOTHING = 0.9
"""Weight of the past in a training loss that is smoothed to be looked at."""
LLMC_TOKENS_PER_STEP = 524_288
LLMC_LINE = re.compile(r"s:(\d+) (tel|trl|eval):(-?(?:nan|inf|\d+(?:\.\d+)?(?:e[+-]?\d+)?))( .*)?")
REFERENCE_SOURCE = "KellerJordan/modded-nanogpt, records/track_1_short/2024-10-13_llmc/main.log"
FINEWEB = "fineweb10B"
FINEWEB_SHARDS = {
    "train": "771fa4a99b9fe0946ffb6e848b4ba5c6a9b0fe87860ebf03bc2c1c7e45f8178e",
    "val": "5b95c8e0966f0861685b307b23dc5ae42b228ef74b28cb499784ae021f201640",
}
"""SHA256 of the first file of each split of kjj0/fineweb10B-gpt2."""
GPT2_124M = {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "vocab_size": 50257, "bias": True}

SUBSTITUTION = (
    "Wherever MuonClip is used here it is a substitution for the AdamW of the published run, in an otherwise "
    "unchanged recipe: it is not a published record, and no published result is repeated by it."
)
SINGLE_RUN = (
    "The published curve is one run (n=1): it has no spread over seeds, hence no band, no interval and no test, and "
    "how far a second run of it would lie from it is not known."
)


@dataclass(frozen=True)
class Series:
    """One quantity along a run; a value that was not finite, or a time that is not known, is NaN."""

    step: tuple[float, ...]
    tokens: tuple[float, ...]
    seconds: tuple[float, ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, points: Iterable[tuple[float, float, float, float]]) -> Series:
        """From points (step, tokens, seconds, value) in order."""
        points = list(points)
        return cls(*(tuple(column) for column in zip(*points, strict=True))) if points else cls((), (), (), ())

    def __len__(self) -> int:
        return len(self.values)

    def along(self, axis: str) -> list[tuple[float, float]]:
        """(position, value) in order, where the position is known; `axis` is `step`, `tokens` or `seconds`."""
        assert axis in AXES
        points = zip(getattr(self, axis), self.values, strict=True)
        return [(x, y) for x, y in points if math.isfinite(x)]

    def at(self, axis: str, position: float) -> float:
        """The value there, between two neighbours by linear interpolation; NaN beyond the ends and in gaps."""
        points = self.along(axis)
        i = bisect_left(points, position, key=lambda point: point[0])
        if i < len(points) and points[i][0] == position:
            return points[i][1]
        if i in (0, len(points)):
            return math.nan
        (x0, y0), (x1, y1) = points[i - 1 : i + 1]
        return y0 + (y1 - y0) * (position - x0) / (x1 - x0)

    def has(self, axis: str, position: float) -> bool:
        """Whether there is a point exactly there."""
        return any(x == position for x, _ in self.along(axis))


Quantity = Callable[[Run], Series]


class Match(NamedTuple):
    """Two curves at one position; `interpolated` where one of them has no point there."""

    at: float
    a: float
    b: float
    interpolated: bool

    @property
    def difference(self) -> float:
        """a - b."""
        return self.a - self.b


@dataclass(frozen=True)
class Band:
    """Lowest, mean and highest value of `n` seeds of one arm, by position."""

    at: tuple[float, ...]
    low: tuple[float, ...]
    mean: tuple[float, ...]
    high: tuple[float, ...]
    n: int


def val_loss(run: Run) -> Series:
    """Validation loss, nats a token.

    Raises:
        StorageError: rows are damaged or out of order.
    """
    return _series(run, run.evaluations, "val_loss")


def token_error(run: Run) -> Series:
    """Share of target tokens that are not the most probable one, always over the same number of tokens.

    From the evaluations; from the tracking rows too where they are about as many tokens, or where there are no
    evaluations.

    Raises:
        StorageError: rows are damaged or out of order.
    """
    with _reading(run):
        rows = {row["step"]: row for row in run.evaluations}
        sizes = {row["target_tokens"] for row in run.evaluations}
        for row in run.tracking:
            if not sizes or sizes == {row["target_tokens"]}:
                rows.setdefault(row["step"], row)
    return _series(run, [rows[step] for step in sorted(rows)], "token_error")


def train_loss(run: Run, smoothing: float = SMOOTHING) -> Series:
    """Training loss of each update, nats a token, exponentially smoothed for display only (0: as it is).

    Raises:
        StorageError: rows are damaged or out of order.
    """
    raw = _series(run, run.metrics, "loss")
    return Series(raw.step, raw.tokens, raw.seconds, tuple(_smoothed(raw.values, smoothing)))


def foreign_series(curve: Foreign) -> Series:
    """The validation loss of a foreign curve."""
    return Series.of(
        (point.step, point.tokens, math.nan if point.seconds is None else point.seconds, point.val_loss)
        for point in curve.points
    )


def band(runs: Sequence[Run], quantity: Quantity, axis: str) -> Band | None:
    """The complete runs of one arm, over its seeds; None for fewer than two.

    The band is the range of what these seeds did, not an interval for the mean: at n=3 a t interval would be 2.5
    SDs wide on either side, and two such bands side by side would invite a comparison that forgets the pairing.
    Along steps and tokens only positions that every run has count; along seconds, where no two runs share any,
    every run is interpolated linearly at all positions inside the common span. A value that is not finite in one
    run is not finite in the band.
    """
    runs = [run for run in runs if run.complete]
    assert len({run.arm for run in runs}) <= 1, "a band is never over arms"
    assert len({run.seed for run in runs}) == len(runs), "a band is over seeds, one run each"
    if len(runs) < 2:
        return None
    series = [quantity(run) for run in runs]
    at = _span(series, axis) if axis == "seconds" else shared(series, axis)
    columns = [[one.at(axis, x) for one in series] for x in at]
    low, middle, high = (tuple(_strict(measure, values) for values in columns) for measure in (min, mean, max))
    return Band(tuple(at), low, middle, high, len(runs))


def shared(series: Sequence[Series], axis: str) -> list[float]:
    """Positions that all of them have, sorted."""
    return sorted(set.intersection(*({x for x, _ in one.along(axis)} for one in series))) if series else []


def matches(a: Series, b: Series, axis: str) -> list[Match]:
    """Both curves where both have a point; if they share none beyond 0, where `a` has one, `b` interpolated.

    Nothing is extrapolated.
    """
    both = shared([a, b], axis)
    exact = [Match(x, a.at(axis, x), b.at(axis, x), False) for x in both]
    if any(x > 0 for x in both):
        return exact
    between = [(x, y, b.at(axis, x)) for x, y in a.along(axis) if x not in both]
    return exact + [Match(x, y, z, True) for x, y, z in between if math.isfinite(z)]


def at_tokens(run: Run, curve: Foreign) -> list[Match]:
    """A run (`a`) and a foreign curve (`b`) at equal token counts: see `matches`."""
    return matches(val_loss(run), foreign_series(curve), "tokens")


def read_llmc_log(path: Path, tokens_per_step: int = LLMC_TOKENS_PER_STEP) -> Foreign:
    """The evaluations in a `main.log` of karpathy/llm.c, whose lines are `s:<step> tel:<loss>` for them.

    Lines `trl` (training loss) and `eval` (HellaSwag) are passed over. llm.c appends when it resumes: of a step
    that is there twice the later line counts. A last line without its newline was cut and is left out.

    Raises:
        DataError: not readable, not such a log, damaged, or without an evaluation.
    """
    text, cut = _complete_lines(path)
    losses: dict[int, float] = {}
    repeated = 0
    for step, loss in _evaluations(path, text):
        repeated += step in losses
        losses[step] = loss
    if not losses:
        raise DataError(
            f"{path}: no evaluation in it (no line `s:<step> tel:<loss>`); llm.c's -v says how often it makes one"
        )
    points = tuple(CurvePoint(step, step * tokens_per_step, losses[step]) for step in sorted(losses))
    notes = [f"Tokens are step x {tokens_per_step:,}: the log does not record them, nor any time."]
    if cut:
        notes.append("The last line has no end, so it was left out.")
    if repeated:
        notes.append(f"{repeated} evaluations are in the log more than once (a resume); the last one counts.")
    return Foreign(f"llm.c log {path.name}", str(path), "not recorded in the log", points, tuple(notes))


def reference_curve() -> Foreign:
    """The published run of llm.c on FineWeb10B that `reference_curve.csv` of this package holds."""
    text = files("gpt2exp.report").joinpath("reference_curve.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    points = tuple(CurvePoint(int(row["step"]), int(row["tokens"]), float(row["val_loss"])) for row in rows)
    optimizer = "AdamW, lr 6e-4, weight decay 0.1, 700 steps of warm-up, cosine to 0"
    notes = ("Stock GPT-2 124M on FineWeb10B; n=1.",)
    return Foreign("published llm.c run, AdamW (n=1)", REFERENCE_SOURCE, optimizer, points, notes)


def applies(run: Run) -> bool:
    """Whether the published curve may be shown beside a run: GPT-2 124M on FineWeb10B, as its record says.

    The corpus counts by its name, or by the hashes of the first file of both splits.
    """
    model = run.record["training"]["model"]
    if any(model.get(name) != size for name, size in GPT2_124M.items()):
        return False
    corpus = run.record.get("corpus") or {}
    named = FINEWEB in (corpus.get("kind"), corpus.get("name"), (run.config.get("data") or {}).get("kind"))
    return named or all(_first_hash(corpus.get(split)) == sha for split, sha in FINEWEB_SHARDS.items())


def reference_sentences(runs: Sequence[Run]) -> tuple[str, ...]:
    """What has to be said wherever the published curve is shown: substitution, n=1, setting, computation."""
    return (SUBSTITUTION, SINGLE_RUN, setting(runs), computation(runs))


def setting(runs: Sequence[Run]) -> str:
    """How hardware and data order differ from those of the published run."""
    devices = _listed(_device(run) for run in runs)
    orders = _listed(str(run.record["training"]["data"]["order"]) for run in runs)
    return (
        "Hardware and data order differ: the published run was made by llm.c's CUDA program on 8 NVIDIA H100 GPUs, "
        "which shuffles the training shards and the windows in them, each GPU from its own seed; the runs here "
        f"were made on {devices} and read their tokens in the order {orders}."
    )


def computation(runs: Sequence[Run]) -> str:
    """How the numbers of both sides were computed."""
    sizes = _listed(f"{run.record['measurement']['evaluation']['tokens']:,}" for run in runs)
    return (
        "How each number was computed: a published loss is a `tel` line of the log, printed to four decimals, the mean "
        "over the first 10,485,760 validation tokens; a loss of the runs here is the sum over the first "
        f"{sizes} validation tokens in float64, divided by their number. Both are set side by side at equal numbers "
        f"of training tokens (published: step x {LLMC_TOKENS_PER_STEP:,}); what lies between two evaluations is marked "
        "as interpolated."
    )


def _series(run: Run, rows: Sequence[Row], column: str) -> Series:
    with _reading(run):
        seconds = run.seconds
        found = Series.of(
            (row["step"], row["tokens"], seconds.get(row["step"], math.nan), _finite(row[column])) for row in rows
        )
    for before, after in pairwise(found.step):
        if after <= before:
            raise StorageError(
                f"{run.path}: {column} of step {after} follows step {before}; rows were repeated or moved, so the run "
                "directory is damaged"
            )
    return found


@contextmanager
def _reading(run: Run) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError) as error:
        raise StorageError(f"{run.path}: a row is damaged, or of another version: {error}") from None


def _finite(value: float | None) -> float:
    return float(value) if value is not None and math.isfinite(value) else math.nan


def _smoothed(values: Iterable[float], smoothing: float) -> Iterator[float]:
    """Exponential average from the first value on; a value that is not finite stays one and is not averaged."""
    past = math.nan
    for value in values:
        if math.isfinite(value):
            past = value if math.isnan(past) else smoothing * past + (1 - smoothing) * value
        yield past if math.isfinite(value) else math.nan


def _span(series: Sequence[Series], axis: str) -> list[float]:
    positions = [[x for x, _ in one.along(axis)] for one in series]
    if not all(positions):
        return []
    first, last = max(one[0] for one in positions), min(one[-1] for one in positions)
    return sorted({x for one in positions for x in one if first <= x <= last})


def _strict(measure: Callable[[Sequence[float]], float], values: Sequence[float]) -> float:
    return measure(values) if all(map(math.isfinite, values)) else math.nan


def _complete_lines(path: Path) -> tuple[str, bool]:
    """The text up to the last newline, and whether anything follows it."""
    try:
        whole, _, rest = path.read_bytes().rpartition(b"\n")
        return whole.decode("ascii"), bool(rest.strip())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not text; expected a main.log of llm.c") from None


def _evaluations(path: Path, text: str) -> Iterator[tuple[int, float]]:
    for number, line in enumerate(text.splitlines(), 1):
        found = LLMC_LINE.fullmatch(line.strip())
        if found is None and line.strip():
            raise DataError(
                f"{path}, line {number}: found {line.strip()[:40]!r}, expected a line of llm.c's main.log, "
                "`s:<step> tel:<loss>`"
            )
        if found is not None and found[2] == "tel":
            yield int(found[1]), _finite(float(found[3]))


def _first_hash(shards: Any) -> str | None:
    return shards[0].get("sha256") if isinstance(shards, list) and shards else None


def _device(run: Run) -> str:
    execution = run.record["execution"]
    name = execution.get("device_model") or execution.get("device") or execution.get("hardware") or "unknown hardware"
    count = execution.get("devices", 1)
    return f"{count} x {name}" if count != 1 else str(name)


def _listed(values: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(values))
