"""Orthogonalization of matrices: the maps, their float64 oracle, and three ways to compute them.

Muon replaces a matrix X = U S Vᵀ, scaled to ‖X‖_F <= 1, by U p(S) Vᵀ. `ns5` takes for p five rounds of the
quintic 3.4445 s - 4.7750 s³ + 2.0315 s⁵ (KellerJordan/Muon): p lies between about 0.7 and 1.2 for all but tiny s.
`polar` takes p = 1: the exact polar factor U Vᵀ.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

NS5 = (3.4445, -4.7750, 2.0315)
CONVERGENT = (15 / 8, -10 / 8, 3 / 8)
"""The quintic with p(1) = 1 and two vanishing derivatives there: cubic convergence to the polar factor."""
POLAR_NS5_STEPS = 10
POLAR_CONVERGENT_STEPS = 6
NORM_FLOOR = 1e-7
"""Smallest norm that is divided by: a zero matrix stays zero, a tiny one stays small (`torch.optim.Muon`)."""
SQUARABLE = (1e-15, 1e15)
"""Norms whose squares, and a matrix's worth of them summed, fp32 holds comfortably."""
BLOCK_ROWS = 128
"""Rows of a block of a symmetric product: of six blocks, 21 of 36 squares are computed."""
POLAR_CUTOFF = 1e-6
"""Singular values below this share of the largest have no direction in fp32: `polar` leaves them out."""


class Polynomial(Enum):
    """Which map of the singular values."""

    ns5 = "ns5"
    polar = "polar"


class NSPrecision(Enum):
    """Arithmetic of the plain iteration."""

    fp32 = "fp32"
    bf16 = "bf16"


def coefficients(polynomial: Polynomial, steps: int) -> tuple[tuple[float, float, float], ...]:
    """One (a, b, c) a round of the plain iteration; `steps` counts for `ns5` only."""
    if polynomial is Polynomial.ns5:
        return (NS5,) * steps
    return (NS5,) * POLAR_NS5_STEPS + (CONVERGENT,) * POLAR_CONVERGENT_STEPS


def newton_schulz(matrix_AB: torch.Tensor, polynomial: Polynomial, steps: int) -> torch.Tensor:
    """Plain iteration X <- a X + (b G + c G²) X, G = X Xᵀ, in the matrix's own dtype; batches allowed.

    The same operations in the same order as `torch.optim.Muon`, so equal to it bit for bit in bf16.
    Never writes into its argument.
    """
    import torch

    tall = matrix_AB.shape[-2] > matrix_AB.shape[-1]
    x_NM = matrix_AB.mT if tall else matrix_AB
    x_NM = x_NM / x_NM.norm(dim=(-2, -1), keepdim=True).clamp(min=NORM_FLOOR)
    multiply_add = torch.baddbmm if x_NM.ndim == 3 else torch.addmm
    for a, b, c in coefficients(polynomial, steps):
        gram_NN = x_NM @ x_NM.mT
        update_NN = multiply_add(gram_NN, gram_NN, gram_NN, beta=b, alpha=c)
        x_NM = multiply_add(x_NM, update_NN, x_NM, beta=a)
    return x_NM.mT if tall else x_NM


def by_eigenvalues(matrix_AB: torch.Tensor, polynomial: Polynomial, steps: int) -> torch.Tensor:
    """The map by one eigendecomposition instead of rounds; see `small_side_factor`."""
    import torch

    factor_NN = small_side_factor(matrix_AB, polynomial, steps)
    tall = matrix_AB.shape[0] > matrix_AB.shape[1]
    return torch.mm(matrix_AB, factor_NN) if tall else torch.mm(factor_NN, matrix_AB)


def small_side_factor(matrix_AB: torch.Tensor, polynomial: Polynomial, steps: int) -> torch.Tensor:
    """M_NN, N = min(A, B), with orthogonalized(W) = M W for wide W and W M for tall.

    M = V q(Λ) Vᵀ / ‖W‖ where the smaller Gram matrix of W / ‖W‖ is V Λ Vᵀ and q the composed gain. One
    eigendecomposition (the time of 5.7 products of N x N matrices) replaces all rounds, and W itself is read
    only twice. The error of the map against float64 is 1e-5 to 3e-4, where the iteration in bf16 has 1e-2 to
    7e-2 (measured).
    """
    x_NM = matrix_AB.mT if matrix_AB.shape[0] > matrix_AB.shape[1] else matrix_AB
    norm = float(x_NM.norm())
    scale = 1.0 / max(norm, NORM_FLOOR)
    if not SQUARABLE[0] < norm < SQUARABLE[1]:
        return scale * small_side_factor_of_unit(x_NM * scale, 1.0, polynomial, steps)
    return small_side_factor_of_unit(x_NM, scale, polynomial, steps)


def small_side_factor_of_unit(x_NM: torch.Tensor, scale: float, polynomial: Polynomial, steps: int) -> torch.Tensor:
    """scale V q(Λ) Vᵀ, Λ the eigenvalues of the Gram matrix of scale * x_NM."""
    import torch

    gram_NN = lower_product(x_NM, x_NM)
    # The lower triangle, said the way LAPACK's column order has it: 4 % faster than UPLO="L".
    eigenvalues_N, vectors_NN = torch.linalg.eigh(gram_NN.mT, UPLO="U")
    gain_N = composed_gain(eigenvalues_N.clamp_(min=0).mul_(scale * scale), polynomial, steps)
    product_NN = lower_product(vectors_NN * (gain_N * scale), vectors_NN)
    return mirrored(product_NN)


def lower_product(left_NM: torch.Tensor, right_NM: torch.Tensor) -> torch.Tensor:
    """left @ rightᵀ where that is symmetric: blocks of rows up to the diagonal; above them, nothing is set."""
    import torch

    size = left_NM.shape[0]
    if size <= BLOCK_ROWS:
        return left_NM @ right_NM.mT
    product_NN = left_NM.new_empty(size, size)
    for start in range(0, size, BLOCK_ROWS):
        end = min(start + BLOCK_ROWS, size)
        torch.mm(left_NM[start:end], right_NM[:end].mT, out=product_NN[start:end, :end])
    return product_NN


def mirrored(lower_NN: torch.Tensor) -> torch.Tensor:
    """Copy the blocks below the diagonal to above it, in place."""
    for start in range(BLOCK_ROWS, lower_NN.shape[0], BLOCK_ROWS):
        end = min(start + BLOCK_ROWS, lower_NN.shape[0])
        lower_NN[:start, start:end] = lower_NN[start:end, :start].mT
    return lower_NN


def composed_gain(squares_N: Any, polynomial: Polynomial, steps: int) -> Any:
    """q with p(s) = q(s²) s, for squares of singular values of a matrix of norm 1 (tensor or array)."""
    if polynomial is Polynomial.polar:
        kept = squares_N > POLAR_CUTOFF**2 * squares_N.max()
        return kept / (squares_N + (~kept)) ** 0.5
    gain_N, current_N = 1.0, squares_N
    for a, b, c in coefficients(polynomial, steps):
        factor_N = a + b * current_N + c * current_N * current_N
        gain_N, current_N = gain_N * factor_N, current_N * factor_N * factor_N
    return gain_N


def oracle(matrix_AB: np.ndarray[Any, Any], polynomial: Polynomial, steps: int) -> np.ndarray[Any, Any]:
    """The map in float64 from the singular value decomposition: what the other three are measured against."""
    import numpy as np

    x_AB = np.asarray(matrix_AB, dtype=np.float64)
    x_AB = x_AB / max(float(np.linalg.norm(x_AB)), NORM_FLOOR)
    u_AN, s_N, vt_NB = np.linalg.svd(x_AB, full_matrices=False)
    gain_N = composed_gain(s_N * s_N, polynomial, steps)
    return np.asarray((u_AN * (gain_N * s_N)) @ vt_NB)
