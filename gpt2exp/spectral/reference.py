"""WeightWatcher itself: its numbers, one matrix at a time, without its side effects.

Verified with weightwatcher 0.7.7. Without CUDA visible, that is: where it sees CUDA, it computes its entropy
with another constant.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from importlib import metadata
from typing import Any

import numpy as np

from gpt2exp.spectral import fast
from gpt2exp.spectral.records import NAN, SUCCESS, Array, Fit, Spectrum

FAILED = "weightwatcher: power law fit failed"
_MAX_EVALS, _MAX_N = 15_000, 50_000
_MP_COLUMNS = (
    "num_traps",
    "rand_num_spikes",
    "rand_sigma_mp",
    "rand_mp_softrank",
    "rand_W_scale",
    "rand_bulk_max",
    "rand_bulk_min",
)
_TRAP_COLUMNS = (*_MP_COLUMNS, "rand_distance", "ww_softrank", "ww_maxdist", "max_rand_eval")


def version() -> str:
    """The installed weightwatcher's version, without importing it.

    Raises:
        importlib.metadata.PackageNotFoundError: it is not installed.
    """
    return metadata.version("weightwatcher")


def measure(W: Array, name: str, randomize: bool = False, seed: int = 0) -> Spectrum:
    """What `analyze()` reports for one matrix: plain, with fix_fingers='clip_xmax', and ERG=True.

    One decomposition serves both fits: `analyze` runs once, clipped, and the plain fit is WeightWatcher's own
    `fit_powerlaw` of the eigenvalues which that call computed (squares of SciPy's singular values, kept as
    `eigenvalues`). `margin` is not WeightWatcher's: it is the fast backend's scan of the same eigenvalues.
    With `randomize`, its permutations start from `seed` and NumPy's global state is put back. WeightWatcher's
    -1 for what it could not compute becomes NaN with a status.

    Raises:
        ImportError: weightwatcher is not installed.
        ValueError: weightwatcher gave no row for the matrix, or could not decompose it.
    """
    with quietly() as weight_watcher, _seeded(seed):
        row, eigenvalues, plain = _analyze(weight_watcher(), np.asarray(W, dtype=np.float64), name, randomize)
    removed = int(row["num_fingers"]) + 1 if row["num_fingers"] > 0 else 0
    clipped = _fit(row, removed, eigenvalues)
    rows, columns = W.shape
    return Spectrum(
        (rows, columns),
        eigenvalues,
        _fit(plain, 0, eigenvalues),
        clipped,
        spectral_norm=float(row["spectral_norm"]),
        frobenius_norm=float(row["norm"]),
        stable_rank=float(row["stable_rank"]),
        entropy=float(row["entropy"]),
        matrix_rank=int(row["matrix_rank"]),
        detX_num=int(row["detX_num"]),
        detX_val=float(row["detX_val"]),
        erg_gap=int(row["ERG_gap"]) if clipped.status == SUCCESS else None,
        traps=_traps(row) if randomize else {},
    )


@contextmanager
def quietly() -> Iterator[Any]:
    """The class WeightWatcher: silent within, and nothing in this process changed by its import.

    It calls logging.basicConfig, which does nothing while the root logger has a handler; it installs a warnings
    filter; and it sets matplotlib's log level.
    """
    root, own, plots = (logging.getLogger(name) for name in (None, "weightwatcher", "matplotlib"))
    level, disabled, placeholder = plots.level, own.disabled, logging.NullHandler()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(redirect_stderr(io.StringIO()))
        stack.callback(root.removeHandler, placeholder)
        stack.callback(plots.setLevel, level)
        stack.callback(setattr, own, "disabled", disabled)
        warnings.simplefilter("ignore")
        root.addHandler(placeholder)
        own.disabled = True
        from weightwatcher import WeightWatcher

        yield WeightWatcher


def _analyze(watcher: Any, W: Array, name: str, randomize: bool) -> tuple[Mapping[str, Any], Array, Mapping[str, Any]]:
    """The row of `analyze`, the eigenvalues it was computed from, and the plain fit of those."""
    spectra: list[Array] = []
    apply_esd = watcher.apply_esd

    def keep_eigenvalues(layer: Any, params: Any = None) -> Any:
        layer = apply_esd(layer, params)
        spectra.append(np.array(layer.evals, dtype=np.float64))
        return layer

    watcher.apply_esd = keep_eigenvalues
    details = watcher.analyze(
        model={f"{name}.weight": W},
        fix_fingers="clip_xmax",
        ERG=True,
        randomize=randomize,
        svd_method="accurate",
        max_evals=max(_MAX_EVALS, *W.shape),
        max_N=max(_MAX_N, *W.shape),
    )
    if len(details) != 1:
        raise ValueError(f"weightwatcher gave {len(details)} rows for one matrix")
    (eigenvalues,) = spectra
    return details.iloc[0].to_dict(), eigenvalues, _plain_fit(watcher, eigenvalues)


def _plain_fit(watcher: Any, eigenvalues: Array) -> Mapping[str, Any]:
    """WeightWatcher's fit without clip_xmax, by the names of its columns."""
    alpha, _, xmin, xmax, D, sigma, spikes, _, _, status, _ = watcher.fit_powerlaw(eigenvalues, plot=False)
    columns = ("alpha", "xmin", "xmax", "D", "sigma", "num_pl_spikes", "status")
    return dict(zip(columns, (alpha, xmin, xmax, D, sigma, spikes, status), strict=True))


def _fit(row: Mapping[str, Any], num_removed: int, eigenvalues: Array) -> Fit:
    if row["status"] != "success":
        return Fit.failed(FAILED)
    return Fit(
        alpha=float(row["alpha"]),
        xmin=float(row["xmin"]),
        xmax=float(row["xmax"]),
        D=float(row["D"]),
        sigma=float(row["sigma"]),
        tail_size=int(row["num_pl_spikes"]) - num_removed,
        num_removed=num_removed,
        margin=fast.margin(eigenvalues, num_removed),
    )


def _traps(row: Mapping[str, Any]) -> dict[str, float]:
    """Columns of the randomisation; NaN for those of a Marchenko-Pastur fit that failed."""
    traps = {column: float(row[column]) for column in _TRAP_COLUMNS}
    if traps["rand_W_scale"] == -1.0:
        traps |= dict.fromkeys(_MP_COLUMNS, NAN)
    return traps


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """NumPy's global generator at `seed`, and as it was afterwards."""
    state = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(state)
