"""The ways to measure a matrix behind one function, with one set of reasons not to fit."""

from __future__ import annotations

from functools import cache
from importlib import metadata

import numpy as np

from gpt2exp.errors import ConfigError
from gpt2exp.spectral.records import Array, Spectrum

FAST, WEIGHTWATCHER = "fast", "weightwatcher"
_LARGEST = 1e150
"""Beyond it, squares and their sums may overflow float64."""
_COMPUTING = {
    WEIGHTWATCHER: ("weightwatcher", "powerlaw", "numpy", "scipy"),
    FAST: ("numpy",),
}


def measure(backend: str, W: Array, name: str, randomize: bool = False, seed: int = 0) -> Spectrum:
    """Spectrum of a matrix; whatever is wrong with the matrix is a status, never an exception and never -1.

    A matrix with fewer than 8 eigenvalues, or with fewer than 8 above 1e-5, is not fitted: 8 is the smallest
    tail that WeightWatcher's small-sample form fits and its own `min_evals`, and what it reports for fewer is a
    fallback to all data, or nothing at all.

    Raises:
        ConfigError: unknown or not installed backend; randomisation asked of `fast`, which has none.
    """
    _installed(backend)
    if randomize and backend == FAST:
        raise ConfigError("the fast spectral backend has no randomisation; use tracking.backend=weightwatcher")
    shape = _two_dimensional(np.shape(W))
    reason = f"not a matrix: {len(np.shape(W))} dimensions" if len(np.shape(W)) != 2 else unfit_for(W)
    if reason is not None:
        return Spectrum.unfit(shape, reason)
    try:
        return _measure(backend, W, name, randomize, seed)
    except Exception as error:
        return Spectrum.unfit(shape, f"failed: {type(error).__name__}: {error}")


def label(backend: str) -> str:
    """What numbers of this backend are labelled with, such as "weightwatcher 0.7.7".

    Raises:
        ConfigError: unknown or not installed backend.
    """
    return f"{backend} {versions(backend)[backend]}"


def versions(backend: str) -> dict[str, str]:
    """Versions of everything that can change this backend's numbers; imports none of it.

    Raises:
        ConfigError: unknown or not installed backend.
    """
    found = dict(_installed(backend))
    if backend == FAST:
        from gpt2exp.spectral import fast

        return {FAST: fast.VERSION, **found}
    return found


def unfit_for(W: Array) -> str | None:
    """Why a two-dimensional array should not be decomposed at all, or None."""
    if min(W.shape) < 8:
        return f"too small: {min(W.shape)} eigenvalues, 8 needed"
    if not np.isfinite(W).all():
        return f"not finite: {int(np.count_nonzero(~np.isfinite(W)))} of {W.size} entries are NaN or infinite"
    smallest, largest = float(W.min()), float(W.max())
    if smallest == largest:
        return "degenerate: all entries zero" if largest == 0.0 else "degenerate: all entries equal"
    if max(-smallest, largest) > _LARGEST:
        return "too large: squares of the entries overflow float64"
    return None


def _measure(backend: str, W: Array, name: str, randomize: bool, seed: int) -> Spectrum:
    from gpt2exp.spectral import fast, reference

    if backend == FAST:
        return fast.measure(W, name)
    return fast.settled(reference.measure(W, name, randomize, seed))


@cache
def _installed(backend: str) -> tuple[tuple[str, str], ...]:
    """Packages that compute for a backend, and their versions."""
    if backend not in _COMPUTING:
        raise ConfigError(f"no spectral backend {backend!r} (has: {', '.join(sorted(_COMPUTING))})")
    try:
        return tuple((package, metadata.version(package)) for package in _COMPUTING[backend])
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            f"spectral backend {backend}: {error.name} is not installed; "
            f"install it with: python -m pip install {error.name}, or use tracking.backend=fast"
        ) from error


def _two_dimensional(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, *others = shape or (0,)
    return rows, int(np.prod(others)) if others else 0
