"""WeightWatcher's raw and clip_xmax fits, from the Gram matrix and with far fewer evaluations.

What is fitted is what weightwatcher 0.7.7 fits (WW_powerlaw.WWFit and RMT_Util.fit_clipped_powerlaw): every
eigenvalue above 1e-5 but the largest is a candidate xmin, alpha is its maximum likelihood estimate, and the
candidate with the smallest Kolmogorov-Smirnov distance D wins. Two things differ, and neither changes a number
beyond rounding: eigenvalues come from the Gram matrix where float64 resolves them there, and D is evaluated
fully only where a few points of the curve do not already rule a candidate out.

Shapes: N is the number of eigenvalues, or of those that are fitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gpt2exp.spectral.records import NAN, SUCCESS, Array, Fit, Spectrum

VERSION = "1"

SMALLEST_FITTED = 1e-5
"""WeightWatcher's absolute threshold: eigenvalues up to it are not fitted."""
MIN_FITTED = 8
"""Fewest fitted eigenvalues: the smallest tail of WeightWatcher's small-sample form, and its `min_evals`."""
MIN_CLIPPED = 14
"""Fewest to clip. WeightWatcher removes up to 9 and then fits three times more with one less each: below 14
it may run out of eigenvalues and fail, depending on where its search ends."""
MIN_SPREAD = 1e-5
"""Relative width of a tail below which its eigenvalues count as equal: alpha, above 1e5, is rounding error."""

_SMALL_SAMPLE = 20
_MAX_REMOVED = 9
_ALPHA_DROP = 1.0
_ALPHA_STOP = 2.0
_ENTROPY_EPSILON = 1e-10
_EPSILON = float(np.finfo(np.float64).eps)
_XMIN_ACCURACY = 1e-10
_SAME_LOG = 1e-9
_SAMPLES = np.linspace(0.0, 1.0, 25)[1:]
_SLACK = 1e-12


def measure(W: Array, name: str) -> Spectrum:
    """Norms and fits of a matrix of finite numbers, in float64.

    Where the Gram matrix cannot tell small eigenvalues from rounding error (a matrix that may lack full rank, an
    xmin a millionth of the largest eigenvalue), the singular values are computed instead.

    Raises:
        numpy.linalg.LinAlgError: no convergence; NaN or infinite entries.
    """
    tall = np.asarray(W, dtype=np.float64)
    tall = tall if tall.shape[0] >= tall.shape[1] else tall.T
    rows, columns = W.shape
    spectrum = spectrum_of(np.maximum(np.linalg.eigvalsh(tall.T @ tall), 0.0), (rows, columns))
    if _resolved(spectrum):
        return spectrum
    singular = np.linalg.svd(tall, compute_uv=False)
    return spectrum_of(np.sort(singular * singular), (rows, columns))


def spectrum_of(eigenvalues: Array, shape: tuple[int, int]) -> Spectrum:
    """Norms and fits from the eigenvalues of W'W (all min(shape) of them, any order) of a matrix of `shape`."""
    values = np.sort(np.asarray(eigenvalues, dtype=np.float64))
    if not len(values) or not np.isfinite(values).all():
        return Spectrum.unfit(shape, "no eigenvalues" if not len(values) else "eigenvalues are not finite")
    raw = clipped = Fit()
    if obstacle(values, shape) is None:
        raw, clipped = _fits(values)
    detX_num, detX_val = _detX(values)
    spikes = clipped.tail_size + clipped.num_removed
    total, largest = float(np.sum(values)), float(values[-1])
    spectrum = Spectrum(
        shape,
        values,
        raw,
        clipped,
        spectral_norm=largest,
        frobenius_norm=total,
        stable_rank=total / largest if largest else NAN,
        entropy=_entropy(values, shape),
        matrix_rank=_rank(values, shape),
        detX_num=detX_num,
        detX_val=detX_val,
        erg_gap=detX_num - spikes,
    )
    return settled(spectrum)


def settled(spectrum: Spectrum) -> Spectrum:
    """The spectrum of any backend without what means nothing: fits, replaced by the reason; the entropy of rank 1."""
    if spectrum.matrix_rank < 2:
        spectrum = replace(spectrum, entropy=NAN)
    reason = obstacle(spectrum.eigenvalues, spectrum.shape)
    if reason is not None:
        failed = Fit.failed(reason)
        return replace(spectrum, raw=failed, clipped=failed, detX_num=None, detX_val=NAN, erg_gap=None)
    reason = _clip_obstacle(int(np.count_nonzero(spectrum.eigenvalues > SMALLEST_FITTED)))
    clipped = Fit.failed(reason) if reason is not None else _settled_fit(spectrum.clipped)
    gap = spectrum.erg_gap if clipped.status == SUCCESS else None
    return replace(spectrum, raw=_settled_fit(spectrum.raw), clipped=clipped, erg_gap=gap)


def obstacle(eigenvalues: Array, shape: tuple[int, int]) -> str | None:
    """Why no power law should be fitted to these ascending eigenvalues, or None.

    Eigenvalues at the rounding error of the largest singular value do not count.
    """
    if not len(eigenvalues):
        return "no eigenvalues"
    rounding = float(eigenvalues[-1]) * (max(shape) * _EPSILON) ** 2
    fitted = eigenvalues[eigenvalues > max(SMALLEST_FITTED, rounding)]
    if len(fitted) == 0:
        return f"no eigenvalue above {SMALLEST_FITTED:g}"
    if len(fitted) == 1:
        return f"degenerate: a single eigenvalue above {SMALLEST_FITTED:g}"
    if len(fitted) < MIN_FITTED:
        return (
            f"too few eigenvalues above {SMALLEST_FITTED:g}: {len(fitted)} of {len(eigenvalues)}, {MIN_FITTED} needed"
        )
    if fitted[-1] < fitted[0] * (1.0 + MIN_SPREAD):
        return "degenerate: all eigenvalues equal"
    return None


def margin(eigenvalues: Array, num_removed: int = 0) -> float:
    """D of the best candidate at another xmin minus the smallest D, without the largest `num_removed`.

    NaN where there is no other candidate.
    """
    fitted = eigenvalues[eigenvalues > SMALLEST_FITTED]
    return _margin(_scan(np.log(fitted[: len(fitted) - num_removed])))


def _resolved(spectrum: Spectrum) -> bool:
    noise = _EPSILON * spectrum.spectral_norm
    smallest = float(spectrum.eigenvalues[0]) if len(spectrum.eigenvalues) else 0.0
    fits = (fit for fit in (spectrum.raw, spectrum.clipped) if fit.status == SUCCESS)
    return smallest > noise * max(spectrum.shape) and all(fit.xmin > noise / _XMIN_ACCURACY for fit in fits)


def _settled_fit(fit: Fit) -> Fit:
    if fit.status != SUCCESS:
        return fit
    if not np.isfinite(fit.alpha) or not fit.xmax > fit.xmin * (1.0 + MIN_SPREAD):
        return Fit.failed("degenerate: the eigenvalues of the best tail are equal")
    return fit


def _clip_obstacle(fitted: int) -> str | None:
    if fitted >= MIN_CLIPPED:
        return None
    return f"too few eigenvalues above {SMALLEST_FITTED:g} to clip: {fitted}, {MIN_CLIPPED} needed"


def _fits(values_N: Array) -> tuple[Fit, Fit]:
    """The raw fit and the one of clip_xmax."""
    fitted = values_N[values_N > SMALLEST_FITTED]
    logs = np.log(fitted)
    scan = _scan(logs)
    raw = _fit(scan, fitted, 0)
    reason = _clip_obstacle(len(fitted))
    if reason is not None:
        return raw, Fit.failed(reason)
    return raw, _clip(raw, fitted, logs)


def _clip(raw: Fit, fitted_N: Array, logs_N: Array) -> Fit:
    """The first fit without the largest 2, 3, ... 9 whose alpha is lower by more than 1; else the raw fit."""
    for removed in range(2, _MAX_REMOVED + 1):
        scan = _scan(logs_N[:-removed])
        alpha = scan.alphas[_closest(scan)[0]]
        if alpha + _ALPHA_DROP < raw.alpha:
            return _fit(scan, fitted_N, removed)
        if alpha <= _ALPHA_STOP:
            break
    return raw


@dataclass(frozen=True)
class _Scan:
    """Candidates for xmin: `logs_N` ascending; candidate i has xmin = exp(logs_N[i]) and all above it as tail.

    `alphas` is 0 where a candidate has none; `bounds` are lower bounds of D, 1 where there is no alpha above 1.
    """

    logs_N: Array
    alphas: Array
    bounds: Array


def _scan(logs_N: Array) -> _Scan:
    size = len(logs_N)
    tails = size - np.arange(size - 1)
    spreads = np.cumsum(logs_N[::-1])[::-1][:-1] - tails * logs_N[:-1]
    alphas = (_small_sample if size < _SMALL_SAMPLE else _maximum_likelihood)(tails, spreads)
    offsets = (_SAMPLES * (tails[:, None] - 1) + 0.5).astype(np.intp)
    columns = np.arange(size - 1)[:, None] + offsets
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        powers = np.exp((logs_N[columns] - logs_N[:-1, None]) * _exponents(alphas)[:, None])
        bounds = np.abs(1.0 - powers - offsets / tails[:, None]).max(axis=1)
    return _Scan(logs_N, alphas, np.where(alphas > 1.0, bounds, 1.0))


def _maximum_likelihood(tails: Array, spreads: Array) -> Array:
    """alpha = 1 + n / sum ln(x/xmin)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(1.0 + tails / spreads)


def _small_sample(tails: Array, spreads: Array) -> Array:
    """alpha with n - 1 in place of n, for tails of 8 or more; where no tail qualifies, of all data.

    Such a fallback occurs only while the search for a clip goes on below 8 eigenvalues, and is never accepted:
    its alpha is larger than that of 8, which was tried before.
    """
    proper = (tails >= MIN_FITTED) & (spreads > 1e-12)
    usable = proper if proper.any() else (tails == tails[0]) & (spreads > 1e-12)
    alphas = np.zeros(len(tails))
    alphas[usable] = 1.0 + (tails[usable] - 1.0) / spreads[usable]
    return alphas


def _exponents(alphas: Array) -> Array:
    """1 - alpha, finite even where equal eigenvalues make alpha infinite, so that 1 ** infinity stays 1."""
    return 1.0 - np.minimum(alphas, 1e300)


def _distance(scan: _Scan, index: int) -> float:
    """D of a candidate; 1 where it has no alpha above 1."""
    if not scan.alphas[index] > 1.0:
        return 1.0
    tail = scan.logs_N[index:] - scan.logs_N[index]
    with np.errstate(over="ignore", under="ignore"):
        powers = np.exp(tail * _exponents(scan.alphas[index]))
    return float(np.abs(1.0 - powers - np.arange(len(tail)) / len(tail)).max())


def _closest(scan: _Scan, among: Array | None = None) -> tuple[int, float]:
    """The candidate with the smallest D (the first of equals) and that D, of all or `among` some indices.

    Candidates are taken by their lower bound, so that those whose bound exceeds the best D are never evaluated.
    """
    bounds = scan.bounds if among is None else scan.bounds[among]
    order = np.argsort(bounds, kind="stable")
    order = order if among is None else among[order]
    best, least = len(scan.bounds), math.inf
    for index in order.tolist():
        if scan.bounds[index] > least + _SLACK:
            break
        distance = _distance(scan, index)
        if (distance, index) < (least, best):
            best, least = index, distance
    return best, least


def _margin(scan: _Scan) -> float:
    best, least = _closest(scan)
    elsewhere = np.abs(scan.logs_N[:-1] - scan.logs_N[best]) > _SAME_LOG
    others = np.flatnonzero(elsewhere & (scan.alphas > 1.0))
    return _closest(scan, others)[1] - least if len(others) else NAN


def _fit(scan: _Scan, fitted_N: Array, num_removed: int) -> Fit:
    index, D = _closest(scan)
    alpha, tail = float(scan.alphas[index]), len(scan.logs_N) - index
    return Fit(
        alpha=alpha,
        xmin=float(fitted_N[index]),
        xmax=float(fitted_N[len(scan.logs_N) - 1]),
        D=D,
        sigma=(alpha - 1.0) / math.sqrt(tail),
        tail_size=int(np.count_nonzero(fitted_N >= fitted_N[index])) - num_removed,
        num_removed=num_removed,
        margin=_margin(scan),
    )


def _rank(values_N: Array, shape: tuple[int, int]) -> int:
    singular = np.sqrt(values_N)
    return int(np.count_nonzero(singular > singular[-1] * max(shape) * _EPSILON))


def _entropy(values_N: Array, shape: tuple[int, int]) -> float:
    """Of the normalised eigenvalues plus 1e-10, relative to the logarithm of the rank."""
    total = float(np.sum(values_N))
    rank = _rank(values_N, shape)
    if rank < 2:
        return NAN
    shares = values_N / total + _ENTROPY_EPSILON
    return float(-np.sum(shares * np.log(shares)) / np.log(rank + _ENTROPY_EPSILON))


def _detX(values_N: Array) -> tuple[int, float]:
    """How many of the largest, scaled to mean 1, until their product is below 1; and the last eigenvalue of them.

    All of them, and the second smallest, where it never falls below 1: WeightWatcher's search ends there.
    """
    if len(values_N) < 2 or not values_N[-1] > 0.0:
        return 0, NAN
    scaled = values_N * (len(values_N) / np.sum(values_N))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        below = np.flatnonzero(np.cumprod(scaled[:0:-1]) < 1.0)
    if not len(below):
        return len(values_N), float(values_N[1])
    count = int(below[0]) + 1
    return count, float(values_N[-count])
