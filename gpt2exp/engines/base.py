"""The contract every engine keeps: NumPy at the boundary, one read-back, the same names everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from gpt2exp.data.windows import Window

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class QKRecord:
    """The largest attention logit of each layer during one update, and how many heads were clipped.

    `kinds` says how `maxima` were got: `exact`, or `bound` where an upper bound already proved that no head
    can clip, so that the true maximum is at most what is recorded.
    """

    maxima: tuple[float, ...]
    kinds: tuple[str, ...]
    clipped_heads: int


@dataclass(frozen=True)
class UpdateRecord:
    """What one update did. `loss` is the mean over the window; `grad_norm` is taken before clipping.

    `update_rms` is, by group, the root mean square of what the update moved apart from weight decay; it is
    measured at some steps only. `qk` is there where the optimizer clips attention logits.
    """

    step: int
    loss: float
    grad_norm: float
    clip_coef: float
    lr: Mapping[str, float]
    gated: bool
    update_rms: Mapping[str, float] = field(default_factory=dict)
    qk: QKRecord | None = None


@dataclass(frozen=True)
class EvalRecord:
    """Sums over an evaluation: never a mean of means.

    `batch_mean_loss` is the plain mean of the fp32 batch means that the model itself returns: what upstream's
    script prints. It depends on the micro-batch; `loss_sum / target_tokens` does not.
    """

    loss_sum: float
    wrong_tokens: int
    target_tokens: int
    batch_mean_loss: float

    @property
    def val_loss(self) -> float:
        """Nats a token, summed in float64."""
        return self.loss_sum / self.target_tokens

    @property
    def token_error(self) -> float:
        """Share of targets that are not the model's first choice."""
        return self.wrong_tokens / self.target_tokens


@dataclass(frozen=True)
class EngineState:
    """Everything training needs to go on: weights by upstream's names, slots as `<slot>/<name>`."""

    step: int
    weights: Mapping[str, Array]
    slots: Mapping[str, Array] = field(default_factory=dict)


class Engine(Protocol):
    """One way to execute training. Host decisions depend on the integer step only."""

    def update(self, step: int, window: Window, lr_factor: float) -> None:
        """Update `step` (from 1) on `window`; a non-finite loss or gradient moves nothing (gated)."""

    def drain(self) -> list[UpdateRecord]:
        """Records since the last drain, in order: the only read-back."""

    def evaluate(self, windows: Iterable[Window]) -> EvalRecord:
        """Loss and token error over `windows`, without touching training state."""

    def logits(self, tokens_T: Array) -> Array:
        """Next-token logits_V after `tokens_T`."""

    def weights(self) -> dict[str, Array]:
        """Copies of the weights, the tied tensor once, no mask buffers."""

    def state(self) -> EngineState:
        """A copy of the full training state."""

    def load(self, state: EngineState) -> None:
        """Continue from `state`; names, shapes and dtypes are checked before anything changes."""

    def executors(self) -> dict[str, Any]:
        """What computes: compared when pairing, pooling and resuming."""

    def close(self) -> None:
        """Release devices and workers."""


def weights_digest(weights: Mapping[str, Array]) -> str:
    """SHA256 over names, dtypes, shapes and bytes, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def mismatches(kind: str, found: Mapping[str, Array], expected: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Names, shapes and dtypes of `found` that differ from `expected` (name -> (shape, dtype))."""
    lines = [f"{kind} {name}: missing" for name in expected if name not in found]
    lines += [f"{kind} {name}: not in this model" for name in found if name not in expected]
    for name, (shape, dtype) in expected.items():
        if name in found and (found[name].shape, found[name].dtype) != (tuple(shape), np.dtype(dtype)):
            lines.append(
                f"{kind} {name}: found {found[name].dtype}{list(found[name].shape)}, "
                f"expected {np.dtype(dtype)}{list(shape)}"
            )
    if not lines and list(found) != list(expected):
        lines.append(f"{kind}s: same names in another order")
    return lines
