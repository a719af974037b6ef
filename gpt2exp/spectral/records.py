"""What is known of one matrix's spectrum; a failed fit is NaN with a reason, never a number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
NAN = math.nan
SUCCESS = "success"


@dataclass(frozen=True)
class Fit:
    """A power law x^-alpha fitted to the eigenvalues in [xmin, xmax].

    `D` is the Kolmogorov-Smirnov distance, `sigma` the standard error of alpha, `tail_size` the number of
    eigenvalues in the range, `num_removed` how many of the largest were left out, `margin` the D of the next
    best xmin minus D: small means that alpha could jump. `status` is `success` or why there is no fit.
    """

    alpha: float = NAN
    xmin: float = NAN
    xmax: float = NAN
    D: float = NAN
    sigma: float = NAN
    tail_size: int = 0
    num_removed: int = 0
    margin: float = NAN
    status: str = SUCCESS

    @classmethod
    def failed(cls, reason: str) -> Fit:
        """No fit, and why."""
        return cls(status=reason)


@dataclass(frozen=True)
class Spectrum:
    """One matrix: shape, norms, the plain and the clipped fit, and WeightWatcher's ERG condition.

    `spectral_norm` is the largest eigenvalue of W'W, `frobenius_norm` the sum of all of them (WeightWatcher's
    `spectral_norm` and `norm`: squares of the usual norms), `stable_rank` their ratio, `entropy` that of the
    normalised eigenvalues as WeightWatcher defines it. `detX_num` counts the largest eigenvalues, scaled to
    mean 1, until their product falls below 1 (the one that ends it included); `erg_gap` is that count minus the
    clipped fit's tail as WeightWatcher reports it. `traps` holds the columns of its randomisation, where asked for.
    """

    shape: tuple[int, int]
    eigenvalues: Array
    raw: Fit
    clipped: Fit
    spectral_norm: float = NAN
    frobenius_norm: float = NAN
    stable_rank: float = NAN
    entropy: float = NAN
    matrix_rank: int = 0
    detX_num: int | None = None
    detX_val: float = NAN
    erg_gap: int | None = None
    traps: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def unfit(cls, shape: tuple[int, int], reason: str) -> Spectrum:
        """A matrix that has no spectrum worth a number."""
        return cls(shape, np.zeros(0), Fit.failed(reason), Fit.failed(reason))

    def row(self) -> dict[str, Any]:
        """Flat columns: fits as `raw_*` and `clip_*`, NaN as None."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("eigenvalues", *_NESTED)}
        rows, columns = own.pop("shape")
        flat = {
            "rows": rows,
            "columns": columns,
            "num_evals": len(self.eigenvalues),
            **own,
            **{f"raw_{f.name}": getattr(self.raw, f.name) for f in fields(Fit)},
            **{f"clip_{f.name}": getattr(self.clipped, f.name) for f in fields(Fit)},
            **self.traps,
        }
        return {name: _json_number(value) for name, value in flat.items()}


_NESTED = ("raw", "clipped", "traps")


def _json_number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
