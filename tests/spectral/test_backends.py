"""Both spectral backends: WeightWatcher's numbers, the same reasons not to fit, and nothing left behind."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest

from gpt2exp.errors import ConfigError
from gpt2exp.spectral import backends, fast, reference
from gpt2exp.spectral.records import SUCCESS, Fit

BOTH = ("fast", "weightwatcher")
rng = np.random.default_rng


def golden_matrices():
    """The recipes behind the golden values; each is rounded to float32."""
    i, j = np.mgrid[:96, :64]
    r2, r4, r8 = rng(2), rng(4), rng(8)
    left, right, noise = (r2.standard_normal(shape) for shape in ((128, 8), (8, 64), (128, 64)))
    return {
        "G1": 0.02 * rng(0).standard_normal((96, 64)),
        "G2": 0.02 * rng(1).standard_t(2.5, (128, 64)),
        "G3": 0.02 * noise + 0.1 * (left @ right),
        "G4": np.diag((1 - np.arange(64) / 64) ** (-1 / 3)),
        "G5": ((37 * i + 101 * j + 7 * i * j + i * i * j) % 211) / 211 - 0.5,
        "G6": 0.02 * (r4.standard_normal((64, 64)) @ r4.standard_normal((64, 64))) / 8,
        "S1": 0.3 * rng(7).standard_normal((48, 16)),
        "S2": r8.standard_normal((96, 40)) @ r8.standard_normal((40, 64)) / 40,
    }


# alpha, xmin, D, sigma, tail, detX_num of weightwatcher 0.7.7 without fix_fingers
RAW = {
    "G1": (7.544532999687312, 0.08391098464293506, 0.1663022620816067, 2.1815109998957705, 9, 50),
    "G2": (2.691682894875994, 0.28913358646536946, 0.05979451094375732, 0.42292072371899847, 16, 41),
    "G3": (1.3627062350463182, 0.0060762038379866415, 0.19194406719190615, 0.04533827938078977, 64, 12),
    "G4": (2.5737623009088644, 1.0, 0.017657808847137524, 0.19672028761360805, 64, 45),
    "G5": (3.733251896434292, 10.323481854169893, 0.1568533628136092, 0.5827312623001217, 22, 52),
    "G6": (2.091595123871245, 0.020551781958456732, 0.16423490968036225, 0.22761331764157264, 23, 40),
    "S1": (3.053378247349812, 3.345011063638232, 0.1688865561752816, 0.6844594157832707, 9, 14),
    "S2": (6.365592648474405, 10.349033966304013, 0.1312350517758789, 2.3995659803123806, 5, 37),
}
# alpha, xmin, xmax, D, sigma, removed, tail without the removed, ERG_gap of fix_fingers="clip_xmax"
CLIPPED = {
    "G1": (2.201812100537245, 0.018350858127524895, 0.09114509552848776, 0.17921439779549386, 0.2003020167562075,
           5, 36, 9),
    "S2": (2.2644500536515255, 2.4827515682946655, 11.810308592211797, 0.17872223613634253, 0.2980337358028959,
           2, 18, 17),
}  # fmt: skip
LAMBDA_MAX = {
    "G2": 3.7168150936958635, "G3": 143.93235574947337, "G4": 16.0, "G5": 22.243165552908955,
    "G6": 0.14588959172659471, "S1": 7.877124584154532,
}  # fmt: skip
SUM_OF_SQUARES = {
    "G1": 2.434430632780992, "G2": 16.504976375417236, "G3": 679.3929232394642, "G5": 510.8197939235289,
    "G6": 1.562088073743488,
}  # fmt: skip


def measure(backend, W, **options):
    return backends.measure(backend, np.asarray(W, dtype=np.float32), "h.0.W_Q", **options)


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("backend", BOTH)
def test_golden_raw_fit(backend, name):
    spectrum = measure(backend, golden_matrices()[name])
    alpha, xmin, D, sigma, tail, detX_num = RAW[name]
    raw = spectrum.raw
    assert (raw.alpha, raw.xmin, raw.D, raw.sigma) == pytest.approx((alpha, xmin, D, sigma), rel=1e-9)
    assert (raw.tail_size, raw.num_removed, spectrum.detX_num, raw.status) == (tail, 0, detX_num, SUCCESS)
    assert spectrum.frobenius_norm == pytest.approx(SUM_OF_SQUARES.get(name, spectrum.frobenius_norm), rel=1e-9)


@pytest.mark.parametrize("name", CLIPPED)
@pytest.mark.parametrize("backend", BOTH)
def test_golden_clipped_fit(backend, name):
    spectrum = measure(backend, golden_matrices()[name])
    clipped = spectrum.clipped
    *numbers, removed, tail, gap = CLIPPED[name]
    found = (clipped.alpha, clipped.xmin, clipped.xmax, clipped.D, clipped.sigma)
    assert found == pytest.approx(tuple(numbers), rel=1e-9)
    assert (clipped.num_removed, clipped.tail_size, spectrum.erg_gap) == (removed, tail, gap)
    inside = (spectrum.eigenvalues >= clipped.xmin) & (spectrum.eigenvalues <= clipped.xmax)
    assert np.count_nonzero(inside) == tail


@pytest.mark.parametrize("name", LAMBDA_MAX)
@pytest.mark.parametrize("backend", BOTH)
def test_where_clipping_is_not_accepted_the_clipped_fit_is_the_raw_one(backend, name):
    spectrum = measure(backend, golden_matrices()[name])
    assert spectrum.clipped == spectrum.raw
    assert spectrum.clipped.xmax == pytest.approx(LAMBDA_MAX[name], rel=1e-9) == spectrum.spectral_norm
    assert spectrum.erg_gap == spectrum.detX_num - spectrum.raw.tail_size


EXACT = {
    "rows", "columns", "num_evals", "raw_tail_size", "clip_tail_size", "raw_num_removed", "clip_num_removed",
    "raw_status", "clip_status", "matrix_rank", "detX_num", "erg_gap",
}  # fmt: skip


def assert_same_row(W, name=""):
    """Every column of both backends; margins are differences of D, so absolute."""
    ours, peers = (backends.measure(backend, W, "W").row() for backend in BOTH)
    assert ours.keys() == peers.keys()
    for column, ours_value in ours.items():
        peers_value = peers[column]
        if column in EXACT or None in (ours_value, peers_value):
            assert ours_value == peers_value, (name, column)
        elif column.endswith("_margin"):
            assert ours_value == pytest.approx(peers_value, rel=0, abs=1e-9), (name, column)
        else:
            assert ours_value == pytest.approx(peers_value, rel=1e-9, abs=0), (name, column)


def low_rank(random, shape):
    return 0.02 * random.standard_normal(shape) + 0.1 * (
        random.standard_normal((shape[0], 6)) @ random.standard_normal((6, shape[1]))
    )


def power_law_spectrum(random, shape):
    size = min(shape)
    left, right = (np.linalg.qr(random.standard_normal((length, size)))[0] for length in shape)
    singular = (1.0 - random.random(size)) ** (-1 / random.uniform(2.0, 6.0))
    return 0.1 * (left * singular) @ right.T


def orthogonalized_update(random, shape):
    """As Muon leaves weights: an initialisation plus a sum of nearly orthogonal steps."""
    steps = (np.linalg.svd(random.standard_normal(shape), full_matrices=False) for _ in range(8))
    return 0.02 * random.standard_normal(shape) + sum(0.02 * u @ vt for u, _, vt in steps)


FAMILIES = {
    "gaussian": lambda random, shape: 0.02 * random.standard_normal(shape),
    "student_t_1.5": lambda random, shape: 0.02 * random.standard_t(1.5, shape),
    "student_t_3": lambda random, shape: 0.02 * random.standard_t(3.0, shape),
    "student_t_4": lambda random, shape: 0.02 * random.standard_t(4.0, shape),
    "low_rank": low_rank,
    "power_law": power_law_spectrum,
    "product": lambda random, shape: (
        0.05 * random.standard_normal((shape[0], 96)) @ random.standard_normal((96, shape[1])) / 10
    ),
    "muon": orthogonalized_update,
}
SHAPES = ((96, 96), (192, 64), (64, 160), (130, 80), (33, 33), (24, 90))


@pytest.mark.parametrize("family", FAMILIES)
def test_parity_of_every_column(family):
    """48 matrices in all."""
    for number, shape in enumerate(SHAPES):
        W = FAMILIES[family](rng((number, len(family))), shape).astype(np.float32)
        assert_same_row(W, f"{family} {shape}")


def slices_like(width):
    """The shapes of 12 blocks: W_Q, W_K, W_V, W_O, W_MLP_IN, W_MLP_OUT."""
    shapes = 12 * (4 * ((width, width),) + ((4 * width, width), (width, 4 * width)))
    return [(0.02 * rng(n).standard_normal(shape)).astype(np.float32) for n, shape in enumerate(shapes)]


def test_parity_on_72_slices_of_a_small_model():
    for number, W in enumerate(slices_like(40)):
        assert_same_row(W, str(number))


@pytest.mark.slow
def test_parity_on_72_slices_of_gpt2():
    for number, W in enumerate(slices_like(768)):
        assert_same_row(W, str(number))


@pytest.mark.parametrize("width", [8, 9, 13, 14, 16, 19, 20, 21, 28, 29, 39])
def test_parity_on_small_matrices(width):
    """Below 20 eigenvalues another estimator; below 14 clipping is not attempted."""
    for seed in range(3):
        W = 0.3 * rng(seed).standard_t(3.0, (3 * width, width))
        assert_same_row(W, f"{width} {seed}")
        assert measure("fast", W).raw.status == SUCCESS


def test_parity_where_the_gram_matrix_cannot_resolve_the_tail():
    """Eigenvalues over 17 decades: in float64 the small ones drown in the Gram matrix."""
    left, right = (np.linalg.qr(rng(seed).standard_normal((64, 64)))[0] for seed in (1, 2))
    W = (left * np.sqrt(np.geomspace(1e-4, 1e13, 64))) @ right.T
    assert_same_row(W)
    assert_same_row(np.linalg.qr(rng(3).standard_normal((64, 40)))[0] @ rng(4).standard_normal((40, 64)))


@pytest.mark.parametrize("seed", [1, 6, 10])
def test_parity_where_the_search_for_a_clip_ends_at_alpha_2(seed):
    """Without that end, removing more would have been accepted."""
    random = rng(seed)
    W = 0.2 * random.standard_t(random.uniform(1.2, 3), (24, 24))
    assert_same_row(W)
    assert backends.measure("fast", W, "W").clipped.num_removed == 0


def test_parity_where_the_product_of_the_eigenvalues_never_falls_below_1():
    assert_same_row(np.diag(np.sqrt([0.01, *np.linspace(1.0, 1.2, 23)])))


def test_parity_with_equal_eigenvalues():
    assert_same_row(np.diag([1.0] * 32 + [2.0] * 32))
    assert_same_row(np.diag(np.repeat(np.arange(1.0, 17.0), 4)))


def test_no_matrix_is_too_large_for_a_row():
    """By default WeightWatcher drops one of more than 50,000 rows without a word."""
    assert_same_row(rng(0).standard_normal((50_001, 8)))


@pytest.mark.parametrize("name", ["G1", "G3", "S1", "S2"])
def test_weightwatcher_is_what_analyze_reports(name):
    """Bit for bit, the plain call and the clipped one, and the eigenvalues of its own decomposition."""
    W = golden_matrices()[name].astype(np.float32)
    spectrum = reference.measure(W, name)
    with reference.quietly() as weight_watcher:
        plain, clipped = (
            weight_watcher().analyze({f"{name}.weight": W}, ERG=True, **option).iloc[0]
            for option in ({}, {"fix_fingers": "clip_xmax"})
        )
    for fit, row in ((spectrum.raw, plain), (spectrum.clipped, clipped)):
        columns = ("alpha", "xmin", "xmax", "D", "sigma")
        assert [getattr(fit, column) for column in columns] == [row[column] for column in columns]
    assert spectrum.raw.alpha == clipped["raw_alpha"]
    assert spectrum.raw.tail_size == plain["num_pl_spikes"]
    assert spectrum.clipped.tail_size + spectrum.clipped.num_removed == clipped["num_pl_spikes"]
    assert max(0, spectrum.clipped.num_removed - 1) == clipped["num_fingers"]
    own = (spectrum.detX_num, spectrum.detX_val, spectrum.erg_gap, spectrum.entropy, spectrum.matrix_rank)
    assert own == tuple(clipped[c] for c in ("detX_num", "detX_val", "ERG_gap", "entropy", "matrix_rank"))
    assert (spectrum.eigenvalues[-1], spectrum.eigenvalues.sum()) == (clipped["lambda_max"], clipped["norm"])


def with_entry(value):
    W = rng(0).standard_normal((64, 64))
    W[3, 5] = value
    return W


BAD = {
    "nan": (with_entry(np.nan), "not finite: 1 of 4096 entries are NaN or infinite"),
    "inf": (with_entry(-np.inf), "not finite: 1 of 4096 entries are NaN or infinite"),
    "zero": (np.zeros((64, 64)), "degenerate: all entries zero"),
    "constant": (np.full((96, 64), 0.1), "degenerate: all entries equal"),
    "rank 1": (np.outer(np.arange(1.0, 65.0), rng(1).random(48)), "degenerate: a single eigenvalue above 1e-05"),
    "near constant": (0.1 + 1e-4 * rng(6).standard_normal((64, 64)), "degenerate: a single eigenvalue above 1e-05"),
    "identity": (np.eye(64), "degenerate: all eigenvalues equal"),
    "orthonormal": (np.linalg.qr(rng(5).standard_normal((96, 64)))[0], "degenerate: all eigenvalues equal"),
    "rank 5": (
        rng(1).standard_normal((64, 5)) @ rng(2).standard_normal((5, 64)),
        "too few eigenvalues above 1e-05: 5 of 64, 8 needed",
    ),
    "tiny": (rng(1).standard_normal((96, 7)), "too small: 7 eigenvalues, 8 needed"),
    "below the threshold": (1e-5 * rng(1).standard_normal((64, 64)), "no eigenvalue above 1e-05"),
    "overflow": (1e200 * rng(1).standard_normal((64, 64)), "too large: squares of the entries overflow float64"),
    "vector": (np.ones(64), "not a matrix: 1 dimensions"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("backend", BOTH)
def test_a_bad_matrix_is_a_reason_and_never_a_number(backend, name):
    W, reason = BAD[name]
    spectrum = backends.measure(backend, W, name)
    for fit in (spectrum.raw, spectrum.clipped):
        assert fit.status == reason
        assert all(math.isnan(x) for x in (fit.alpha, fit.xmin, fit.xmax, fit.D, fit.sigma, fit.margin))
    assert spectrum.detX_num is None and spectrum.erg_gap is None
    assert spectrum.matrix_rank > 1 or math.isnan(spectrum.entropy)
    assert -1 not in [value for value in spectrum.row().values() if isinstance(value, int | float)]


@pytest.mark.parametrize("backend", BOTH)
def test_below_14_eigenvalues_the_raw_fit_stands_alone(backend):
    spectrum = measure(backend, rng(1).standard_normal((64, 13)))
    assert spectrum.raw.status == SUCCESS and spectrum.erg_gap is None
    assert spectrum.clipped.status == "too few eigenvalues above 1e-05 to clip: 13, 14 needed"


@pytest.mark.parametrize("backend", BOTH)
def test_an_exception_inside_a_backend_becomes_a_status(backend, monkeypatch):
    def explode(*_):
        raise RuntimeError("boom")

    monkeypatch.setattr(fast if backend == "fast" else reference, "measure", explode)
    assert measure(backend, np.eye(64) + 0.1).raw == Fit.failed("failed: RuntimeError: boom")


@pytest.mark.parametrize("backend", BOTH)
def test_transposition_and_scale_change_nothing(backend):
    W = golden_matrices()["G1"]
    one = measure(backend, W)
    for other in (measure(backend, W.T), measure(backend, 4.0 * W)):
        assert other.raw.alpha == pytest.approx(one.raw.alpha, rel=1e-9)
        assert other.clipped.alpha == pytest.approx(one.clipped.alpha, rel=1e-9)
        assert other.clipped.num_removed == one.clipped.num_removed


def test_randomization_is_reproducible_and_leaves_numpys_generator_alone():
    W = golden_matrices()["G1"].astype(np.float32)
    before = np.random.get_state()
    one, same, other = (measure("weightwatcher", W, randomize=True, seed=seed) for seed in (5, 5, 6))
    after = np.random.get_state()
    assert before[0] == after[0] and np.array_equal(before[1], after[1]) and before[2:] == after[2:]
    assert one.traps == same.traps != other.traps
    assert {"num_traps", "rand_distance", "ww_softrank", "ww_maxdist", "max_rand_eval"} <= set(one.traps)
    assert one.raw == measure("weightwatcher", W).raw and measure("weightwatcher", W).traps == {}


def test_the_randomized_spectrum_is_that_of_the_seeds_permutations():
    W = golden_matrices()["G1"].astype(np.float32)
    random, largest = np.random.RandomState(7), 0.0
    for _ in range(5):
        entries = W.flatten()
        random.shuffle(entries)
        largest = max(largest, np.linalg.norm(entries.reshape(W.shape).astype(float), 2) ** 2)
    assert measure("weightwatcher", W, randomize=True, seed=7).traps["max_rand_eval"] == pytest.approx(largest)


def test_an_mp_fit_that_failed_is_nan():
    columns = dict.fromkeys(reference._TRAP_COLUMNS, 0.5) | dict.fromkeys(reference._MP_COLUMNS, -1.0)
    traps = reference._traps(columns)
    assert all(math.isnan(traps[column]) for column in reference._MP_COLUMNS)
    assert traps["ww_maxdist"] == 0.5


@pytest.mark.parametrize(("backend", "options"), [("torch", {}), ("fast", {"randomize": True})])
def test_what_no_backend_offers_is_refused(backend, options):
    with pytest.raises(ConfigError, match="spectral backend"):
        measure(backend, np.eye(64), **options)


def test_a_backend_that_is_not_installed_is_named(monkeypatch):
    def missing(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(backends.metadata, "version", missing)
    monkeypatch.setattr(backends, "_installed", backends._installed.__wrapped__)
    with pytest.raises(ConfigError, match="weightwatcher is not installed"):
        measure("weightwatcher", np.eye(64))


def test_weightwatcher_says_nothing(capfd, caplog):
    caplog.set_level(logging.DEBUG)
    measure("weightwatcher", golden_matrices()["S1"], randomize=True)
    assert reference.measure(np.eye(64) * 1e-4, "fails").raw == Fit.failed(reference.FAILED)
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.name == "weightwatcher"] == []


SIDE_EFFECTS = """
import json, logging, sys, warnings
import matplotlib, numpy as np
from gpt2exp.spectral import backends
labels = [backends.label(name) for name in ("fast", "weightwatcher")]
heavy = sorted({"weightwatcher", "powerlaw", "pandas", "scipy", "torch"} & set(sys.modules))
def state():
    loggers = [logging.getLogger(name) for name in (None, "matplotlib")]
    return [
        [[repr(h) for h in logger.handlers] + [logger.level] for logger in loggers], repr(warnings.filters),
        repr(dict(dict.items(matplotlib.rcParams))), repr(np.geterr()), repr(np.random.get_state()),
    ]
matplotlib.use("svg")
before = state()
alpha = backends.measure("weightwatcher", np.random.default_rng(0).standard_normal((96, 64)), "W").raw.alpha
print(json.dumps([labels, heavy, before == state(), "weightwatcher" in sys.modules, alpha]))
"""


def test_importing_weightwatcher_leaves_nothing_behind():
    """In a fresh process without any log handler; and labels and versions need no import at all."""
    done = subprocess.run([sys.executable, "-c", SIDE_EFFECTS], capture_output=True, text=True, check=True)
    labels, heavy, unchanged, imported, alpha = json.loads(done.stdout)
    assert labels == ["fast 1", f"weightwatcher {reference.version()}"] and heavy == []
    assert unchanged and imported and alpha == pytest.approx(RAW["G1"][0], rel=1e-4)
    assert done.stderr == ""


def test_versions_name_what_can_change_the_numbers():
    assert set(backends.versions("weightwatcher")) == {"weightwatcher", "powerlaw", "numpy", "scipy"}
    assert backends.versions("fast") == {"fast": fast.VERSION, "numpy": np.__version__}
