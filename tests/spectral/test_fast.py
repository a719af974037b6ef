"""The fast backend's fits against their definition, written as plainly as possible."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpt2exp.spectral import backends, fast
from gpt2exp.spectral.records import SUCCESS


@pytest.mark.parametrize("backend", ["fast", "weightwatcher"])
@pytest.mark.parametrize("shape", [(96, 64), (40, 130), (48, 16)])
def test_stored_eigenvalues_give_the_same_spectrum_again(backend, shape):
    spectrum = backends.measure(backend, np.random.default_rng(shape).standard_t(3.0, shape), "W")
    one, again = spectrum.row(), fast.spectrum_of(spectrum.eigenvalues[::-1], shape).row()
    assert again.keys() == one.keys()
    for column, value in one.items():
        if column.endswith("_status"):
            assert again[column] == value == SUCCESS
        else:
            assert again[column] == pytest.approx(value, rel=1e-9), column


def test_rank_and_entropy_count_from_the_longer_side_as_weightwatcher_does():
    """Singular values down to 3e-13 of the largest: above the rounding error of 64 rows, below that of 4,096."""
    eigenvalues = np.array([1e-25, *np.linspace(0.5, 1.0, 63)])
    assert fast.spectrum_of(eigenvalues, (64, 64)).matrix_rank == 64
    assert fast.spectrum_of(eigenvalues, (4096, 64)).matrix_rank == 63


def test_a_fit_to_equal_eigenvalues_is_degenerate():
    good = fast.measure(0.02 * np.random.default_rng(1).standard_t(2.5, (128, 64)), "W")
    tied = replace(good.raw, alpha=math.inf, xmin=2.0, xmax=2.0 * (1 + 1e-9))
    assert fast.settled(replace(good, raw=tied)).raw.status.startswith("degenerate")
    assert fast.settled(good) == good


def plain_candidates(values):
    """(D, index, alpha) of every xmin, each from its definition."""
    small, size = len(values) < 20, len(values)
    for i in range(size - 1):
        tail = values[i:]
        n = len(tail)
        total = math.fsum(math.log(x) for x in tail) - n * math.log(values[i])
        if total <= 1e-9 or (small and n < 8 and (size >= 8 or i > 0)):
            continue
        alpha = 1 + (n - 1 if small else n) / total
        distances = [abs(1 - (x / values[i]) ** (1 - alpha) - j / n) for j, x in enumerate(tail)]
        yield max(distances), i, alpha


def plain_fit(values):
    """The best candidate, and the D of the best at another xmin; alpha 0 and D 1 where all values are equal."""
    candidates = list(plain_candidates(values)) or [(1.0, 0, 0.0)]
    D, i, alpha = min(candidates)
    others = [other for other, j, _ in candidates if values[j] != values[i]]
    return alpha, values[i], D, min(others, default=math.nan)


def plain_clip(values):
    """clip_xmax: (fit, number removed), and the smallest gap between any two D that decided something."""
    raw = plain_fit(values)
    gaps = [raw[3] - raw[2]]
    for removed in range(2, 10):
        fit = plain_fit(values[:-removed])
        gaps.append(fit[3] - fit[2])
        if fit[0] + 1 < raw[0]:
            return raw, fit, removed, gaps
        if fit[0] <= 2:
            break
    return raw, raw, 0, gaps


@settings(max_examples=300, deadline=None)
@given(
    st.integers(14, 64),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["pareto", "lognormal", "chisquare", "uniform", "repeated"]),
    st.floats(-2, 4),
)
def test_the_fits_agree_with_their_plain_definition(size, seed, family, scale):
    random = np.random.default_rng(seed)
    draws = {
        "pareto": lambda: random.pareto(random.uniform(0.5, 4), size) + 1,
        "lognormal": lambda: random.lognormal(0, random.uniform(0.1, 2), size),
        "chisquare": lambda: random.chisquare(random.uniform(1, 9), size) + 1e-3,
        "uniform": lambda: random.uniform(0.1, 1, size),
        "repeated": lambda: random.choice(random.uniform(0.1, 1, 12), size),
    }
    values = np.sort(draws[family]() * 10**scale)
    assume(values[0] > 2e-5)
    raw, clipped, removed, gaps = plain_clip(values.tolist())
    assume(all(not gap < 1e-9 for gap in gaps))
    spectrum = fast.spectrum_of(values, (size, size))
    for fit, (alpha, xmin, D, runner_up) in ((spectrum.raw, raw), (spectrum.clipped, clipped)):
        if alpha == 0.0:
            assert fit.status.startswith("degenerate")
            continue
        assert fit.status == SUCCESS
        assert (fit.alpha, fit.xmin, fit.D) == pytest.approx((alpha, xmin, D), rel=1e-10)
        assert fit.margin == pytest.approx(runner_up - D, abs=1e-12, nan_ok=True)
    if spectrum.clipped.status == SUCCESS:
        assert spectrum.clipped.num_removed == removed
        assert spectrum.clipped.tail_size == np.count_nonzero(values >= clipped[1]) - removed
