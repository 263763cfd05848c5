"""KuLSIF: the density ratio of known to auxiliary samples by kernel least squares, in closed form.

Both estimators minimise Eq. 1 of Shao et al. 2023 (Kanamori et al. 2012),

    1/(2 n_u) Σ_i w(u_i)² - 1/n_k Σ_j w(x_j) + β/2 ‖w‖²,

over the reproducing kernel Hilbert space of the Gaussian kernel k(x, y) = exp(-‖x - y‖² / 2σ²): `KuLSIF` over all of
it, `NystromKuLSIF` over the span of a few landmarks. Squared distances are formed by matrix products, block by block,
in the precision of the samples; systems are solved in float64.

Guarantees:
  * `KuLSIF` is the minimiser: the gradient of Eq. 1 vanishes at it;
  * `NystromKuLSIF` is the minimiser on its span, and equals `KuLSIF` when every sample is a landmark;
  * `KuLSIF.influence` averaged over the known samples is the ratio that `KuLSIF.fit` finds;
  * memory beyond the samples and one square matrix (n_u or landmarks a side) does not grow with their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["DensityRatio", "KuLSIF", "NystromKuLSIF", "default_bandwidth", "known_records", "threshold"]

_MOST_COMPARED = 1000
"""Largest number of records behind a bandwidth; a median needs no more."""
_BLOCK = 1 << 22
"""Entries of a kernel matrix held at a time: 16 MB in float32."""
_NO_DIGIT = 1e-6
"""Share of a ratio that changes no digit of float32."""

Array = TypeVar("Array", Tensor, NDArray[Any])


@dataclass(frozen=True, eq=False)
class DensityRatio:
    """A fitted ratio w(x) = Σ_i c_i k(x, z_i).

    Attributes:
        centres: z (p, d).
        coefficients: c (p,), float64.
        bandwidth: σ.
    """

    centres: Tensor
    coefficients: Tensor
    bandwidth: float

    def ratio(self, x: Array) -> Array:
        """Return w at samples (q, d): (q,) float64, an array for an array, a tensor for a tensor.

        The estimate is unconstrained: far from every centre it is zero, and it may be slightly below.

        Raises:
            ValueError: `x` is not (q, d) with d as fitted.
        """
        samples = _samples("x", x)
        if samples.shape[1] != self.centres.shape[1]:
            problem = f"x: has {samples.shape[1]} dimensions, the fitted samples {self.centres.shape[1]}."
            raise ValueError(f"{problem} Give samples of the fitted space.")
        samples = samples.to(self.centres)
        values = samples.new_empty(len(samples), dtype=torch.float64)
        for rows, kernel in _kernel_blocks(samples, self.centres, self.bandwidth):
            values[rows] = kernel @ self.coefficients.to(kernel.dtype)
        return values if isinstance(x, Tensor) else values.cpu().numpy()


@dataclass(frozen=True)
class KuLSIF:
    """The exact estimator (Kanamori et al. 2012, Theorem 1).

    w(x) = Σ_i a_i k(x, u_i) + 1/(n_k β) Σ_j k(x, x_j), where (K_uu/n_u + β I) a = -1/(n_u n_k β) K_ux 1. Time grows
    with n_u³ + (n_u + n_k) q d, memory with n_u².

    Args:
        bandwidth: σ of the kernel, in the samples' units.
        beta: β > 0, the weight of the norm; n_u^-1/2 makes the estimate converge.
    """

    bandwidth: float
    beta: float

    def __post_init__(self) -> None:
        _positive("bandwidth", self.bandwidth)
        _positive("beta", self.beta)

    def fit(self, known: Array, auxiliary: Array) -> DensityRatio:
        """Return the ratio of the density of `known` (n, d) to that of `auxiliary` (m, d).

        Raises:
            ValueError: a set is empty, not (n, d) or not finite, or dimensions differ; the system is singular.
        """
        x, u = _pair(known, auxiliary)
        n_k, n_u, beta = len(x), len(u), self.beta
        system = u.new_empty(n_u, n_u, dtype=torch.float64)
        for rows, kernel in _kernel_blocks(u, u, self.bandwidth):
            system[rows] = kernel
        system /= n_u
        system.diagonal().add_(beta)
        sums = u.new_empty(n_u, dtype=torch.float64)
        for rows, kernel in _kernel_blocks(u, x, self.bandwidth):
            sums[rows] = kernel.sum(1, dtype=torch.float64)
        a = _solve(system, -sums / (n_u * n_k * beta), beta)
        coefficients = torch.cat([a, a.new_full((n_k,), 1 / (n_k * beta))])
        return DensityRatio(torch.cat([u, x]), coefficients, self.bandwidth)

    def influence(self, records: Tensor, auxiliary: Tensor, at: Tensor) -> Tensor:
        """Return each record's contribution to the ratio as a known sample: w(x) is the mean of the contributions.

        I(x, x_j) = 1/β [k(x, x_j) - k_xu (K_uu/n_u + β I)⁻¹ k_u(x_j) / n_u].

        Args:
            records: x_j (n, d).
            auxiliary: u (m, d).
            at: x (q, d).

        Returns:
            (n, q) float64.

        Raises:
            ValueError: as in `fit`.
        """
        x, u = _pair(records, auxiliary)
        n_u, beta, points = len(u), self.beta, _samples("at", at).to(x)
        direct = _kernel(x, points, self.bandwidth)
        near = _kernel(u, x, self.bandwidth)
        reach = _kernel(u, points, self.bandwidth)
        own = _kernel(x, x, self.bandwidth)
        # The inverse is at most 1/β. Far from all auxiliary samples the second term is lost beside what records add to
        # each other, and so beside any threshold.
        bound = near.amax(0)[:, None] * reach.amax(0) / beta
        negligible = bound <= _NO_DIGIT * direct.clamp_min(float(own.min()))
        if bool(negligible.all()):
            return direct / beta
        system = _kernel(u, u, self.bandwidth) / n_u
        system.diagonal().add_(beta)
        solved = torch.cholesky_solve(reach, _cholesky(system, beta))
        return (direct - near.T @ solved / n_u) / beta


@dataclass(frozen=True)
class NystromKuLSIF:
    """The estimator restricted to w(x) = Σ_l c_l k(x, z_l) on few landmarks z, for sets too large for `KuLSIF`.

    Half of the landmarks are drawn from the known samples, half from the auxiliary ones. With L Lᵀ = K_zz and the
    features φ(x) = L⁻¹ k(z, x), Eq. 1 is a ridge problem in v = Lᵀ c: (Φ_uᵀΦ_u/n_u + β I) v = 1/n_k Φ_xᵀ 1. Time
    grows with (n_k + n_u) landmarks (landmarks + d), memory with landmarks².

    Args:
        bandwidth: σ of the kernel, in the samples' units.
        beta: β > 0, the weight of the norm.
        landmarks: how many samples span the estimate; more than there are means all of them.
        seed: of the draw of the landmarks.
    """

    bandwidth: float
    beta: float
    landmarks: int
    seed: int

    def __post_init__(self) -> None:
        _positive("bandwidth", self.bandwidth)
        _positive("beta", self.beta)
        if self.landmarks < 1:
            raise ValueError(f"landmarks = {self.landmarks}. Give at least 1.")

    def fit(self, known: Array, auxiliary: Array) -> DensityRatio:
        """Return the ratio of the density of `known` (n, d) to that of `auxiliary` (m, d).

        Raises:
            ValueError: a set is empty, not (n, d) or not finite, or dimensions differ; the system is singular.
        """
        x, u = _pair(known, auxiliary)
        count = min(self.landmarks, len(x) + len(u))
        half = math.ceil(count / 2)
        from_x = min(max(half, count - len(u)), len(x))
        generator = torch.Generator().manual_seed(self.seed)
        of_x = torch.randperm(len(x), generator=generator)[:from_x]
        of_u = torch.randperm(len(u), generator=generator)[: count - from_x]
        z = torch.cat([x[of_x.to(x.device)], u[of_u.to(u.device)]])
        products = z.new_zeros(len(z), len(z), dtype=torch.float64)
        for _, kernel in _kernel_blocks(u, z, self.bandwidth):
            products.addmm_(kernel.T.double(), kernel.double(), alpha=1 / len(u))
        means = z.new_zeros(len(z), dtype=torch.float64)
        for _, kernel in _kernel_blocks(x, z, self.bandwidth):
            means += kernel.sum(0, dtype=torch.float64) / len(x)
        gram = _kernel(z.double(), z.double(), self.bandwidth)
        # Landmarks that are close together make K_zz singular up to rounding. A small addition to its diagonal of ones
        # stops L⁻¹ from amplifying rounding errors.
        gram.diagonal().add_(1e-5 if z.dtype == torch.float32 else 1e-10)
        factor = _cholesky(gram, self.beta)
        system = _left(factor, _left(factor, products).T)
        system.diagonal().add_(self.beta)
        right = _left(factor, means.unsqueeze(1))
        v = _solve(system, right.squeeze(1), self.beta)
        c = torch.linalg.solve_triangular(factor.T, v.unsqueeze(1), upper=True)
        return DensityRatio(z, c.squeeze(1), self.bandwidth)


# -- settings of a class's estimate ------------------------------------------------------------------------------


def default_bandwidth(points: Tensor) -> float:
    """Return a sixth of the median distance between points (n, d), or a millionth if all points coincide."""
    distances = torch.pdist(points[:_MOST_COMPARED])
    return max(float(distances.median()) / 6, 1e-6)


def known_records(records: int, *, validation: float, most: int) -> int:
    """Return the number of a class's records that a density is estimated from; the rest is its validation split.

    Args:
        records: of the class, at least 2.
        validation: share of them, at least, that are validation records.
        most: known records at most.
    """
    held_out = max(round(validation * records), 1)
    return min(max(records - held_out, 1), most)


def threshold(scores: Tensor, tau: float) -> float:
    """Return the τ quantile of validation scores (n,), but at least the smallest positive number."""
    quantile = float(torch.quantile(scores.double(), tau))
    return max(quantile, torch.finfo(torch.float64).tiny)


# -- kernels ----------------------------------------------------------------------------------------------------


def _kernel_blocks(x: Tensor, y: Tensor, bandwidth: float) -> Iterator[tuple[slice, Tensor]]:
    """Yield row blocks (rows, y) of the Gaussian kernel matrix of x (n, d) and y (m, d), in their precision.

    ‖x - y‖² = ‖x‖² + ‖y‖² - 2 x·y loses digits when the norms exceed the distances. Both sets are therefore centred on
    y's mean.
    """
    centre = y.mean(0)
    y = y - centre
    y_norms = torch.linalg.vector_norm(y, dim=1).square_()
    size = max(_BLOCK // len(y), 1)
    for start in range(0, len(x), size):
        rows = slice(start, min(start + size, len(x)))
        part = x[rows] - centre
        squared = torch.addmm(y_norms, part, y.T, alpha=-2)
        squared += torch.linalg.vector_norm(part, dim=1, keepdim=True).square_()
        yield rows, squared.clamp_(min=0).mul_(-0.5 / bandwidth**2).exp_()


def _kernel(x: Tensor, y: Tensor, bandwidth: float) -> Tensor:
    """Return the Gaussian kernel matrix (n, m) of x (n, d) and y (m, d), in float64."""
    blocks = []
    for _, block in _kernel_blocks(x, y, bandwidth):
        blocks.append(block.double())
    return torch.cat(blocks)


def _left(factor: Tensor, matrix: Tensor) -> Tensor:
    """L⁻¹ M."""
    solved: Tensor = torch.linalg.solve_triangular(factor, matrix, upper=False)
    return solved


def _cholesky(matrix: Tensor, beta: float) -> Tensor:
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed):
        raise ValueError(f"beta = {beta}: the system is singular in float arithmetic. Raise beta.")
    return factor


def _solve(matrix: Tensor, right: Tensor, beta: float) -> Tensor:
    """Return the solution (p,) of a symmetric positive definite system by Cholesky."""
    return torch.cholesky_solve(right.unsqueeze(1), _cholesky(matrix, beta)).squeeze(1)


# -- arguments --------------------------------------------------------------------------------------------------


def _pair(known: Tensor | NDArray[Any], auxiliary: Tensor | NDArray[Any]) -> tuple[Tensor, Tensor]:
    x, u = _samples("known", known), _samples("auxiliary", auxiliary)
    for name, samples in (("known", x), ("auxiliary", u)):
        if not len(samples):
            raise ValueError(f"{name}: holds no sample. Give at least one.")
    if x.shape[1] != u.shape[1]:
        problem = f"auxiliary: has {u.shape[1]} dimensions, known {x.shape[1]}."
        raise ValueError(f"{problem} Give samples of one space.")
    dtype = torch.promote_types(x.dtype, u.dtype)
    return x.to(dtype), u.to(device=x.device, dtype=dtype)


def _samples(name: str, values: Tensor | NDArray[Any]) -> Tensor:
    """Return samples as a tensor: float32 stays float32, everything else becomes float64."""
    samples = values if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))
    samples = samples.detach()
    if samples.dim() != 2:
        raise ValueError(f"{name}: has shape {tuple(samples.shape)}. Flatten each sample to make it (n, d).")
    if samples.dtype != torch.float32:
        samples = samples.double()
    if len(samples) and not torch.isfinite(samples.sum()):  # one pass; NaN and infinity survive a sum
        raise ValueError(f"{name}: holds NaN or infinite values. Remove them.")
    return samples


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} = {value}. Give a finite number greater than 0.")
