"""Canonical correlation analysis in closed form, from moments that are gathered batch by batch.

CCA finds the pairs of directions, one in each modality, along which paired samples correlate most. It needs no
training, so it is the baseline that a learned embedding has to beat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class Moments:
    """Means and covariances of paired rows, in memory that does not grow with their number.

    Args:
        dim_a: channels of modality A.
        dim_b: channels of modality B.

    Example:
        >>> moments = Moments(2, 1)
        >>> moments.add(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[5.0], [7.0]]))
        >>> moments.count, moments.mean_a.tolist(), moments.covariance_ab.tolist()
        (2, [2.0, 0.0], [[1.0], [0.0]])
    """

    def __init__(self, dim_a: int, dim_b: int) -> None:
        self.count = 0
        self.dim_a = dim_a
        total = dim_a + dim_b
        # Both modalities side by side. Sums are taken around the mean of the first rows: large means would cost digits.
        self._shift = torch.zeros(total, dtype=torch.float64)
        self._sum = torch.zeros(total, dtype=torch.float64)
        self._products = torch.zeros(total, total, dtype=torch.float64)

    def add(self, a: Tensor, b: Tensor) -> None:
        """Take in (rows, dim_a) and (rows, dim_b); row i of one goes with row i of the other."""
        if len(a) != len(b) or a.shape[1] != self.dim_a or a.shape[1] + b.shape[1] != len(self._sum):
            raise ValueError(
                f"expected paired rows of {self.dim_a} and {len(self._sum) - self.dim_a} channels, "
                f"got shapes {tuple(a.shape)} and {tuple(b.shape)}"
            )
        rows = torch.cat([a, b], dim=1).to(torch.float64)  # (rows, dim_a + dim_b)
        bad = ~torch.isfinite(rows)
        if bool(bad.any()):
            row, channel = bad.nonzero()[0].tolist()
            side = f"A, channel {channel}" if channel < self.dim_a else f"B, channel {channel - self.dim_a}"
            raise ValueError(
                f"training pair {self.count + row} holds NaN or infinity in modality {side}; "
                "`crossclr data check` names the sample"
            )
        if self.count == 0:
            self._shift = rows.mean(dim=0)
        rows -= self._shift
        self._sum += rows.sum(dim=0)
        self._products.addmm_(rows.T, rows)
        self.count += len(rows)

    def _mean(self) -> Tensor:
        return self._shift + self._sum / self.count

    def _covariance(self) -> Tensor:
        mean = self._sum / self.count
        return self._products / self.count - torch.outer(mean, mean)

    @property
    def mean_a(self) -> Tensor:
        """(dim_a,) mean row of A."""
        return self._mean()[: self.dim_a]

    @property
    def mean_b(self) -> Tensor:
        """(dim_b,) mean row of B."""
        return self._mean()[self.dim_a :]

    @property
    def covariance_aa(self) -> Tensor:
        """(dim_a, dim_a) covariance of A, divided by the number of rows."""
        return self._covariance()[: self.dim_a, : self.dim_a]

    @property
    def covariance_bb(self) -> Tensor:
        """(dim_b, dim_b) covariance of B."""
        return self._covariance()[self.dim_a :, self.dim_a :]

    @property
    def covariance_ab(self) -> Tensor:
        """(dim_a, dim_b) covariance between A and B."""
        return self._covariance()[: self.dim_a, self.dim_a :]


@dataclass(frozen=True)
class CCA:
    """Directions of both modalities, the most correlated first.

    Args:
        mean_a: (dim_a,) subtracted from rows of A.
        mean_b: (dim_b,) subtracted from rows of B.
        basis_a: (dim_a, k) canonical directions of A; the projections of the training rows have unit variance (with
            regularisation: less).
        basis_b: (dim_b, k) likewise for B.
        correlations: (k,) canonical correlations, falling.
    """

    mean_a: Tensor
    mean_b: Tensor
    basis_a: Tensor
    basis_b: Tensor
    correlations: Tensor

    def project_a(self, rows: Tensor, dim: int | None = None, weighting: float = 0.0) -> Tensor:
        """(rows, dim) float32 coordinates of A in the common space.

        Args:
            rows: (rows, dim_a).
            dim: how many of the most correlated directions to use; all by default.
            weighting: each coordinate is multiplied by its correlation to this power, so that directions which hardly
                correlate weigh less in a cosine.
        """
        return _project(rows, self.mean_a, self.bases(dim, weighting)[0])

    def project_b(self, rows: Tensor, dim: int | None = None, weighting: float = 0.0) -> Tensor:
        """(rows, dim) float32 coordinates of B; see `project_a`."""
        return _project(rows, self.mean_b, self.bases(dim, weighting)[1])

    def bases(self, dim: int | None = None, weighting: float = 0.0) -> tuple[Tensor, Tensor]:
        """(dim_a, dim) and (dim_b, dim): what rows around their mean are multiplied by; see `project_a`."""
        weights = self.correlations[:dim].clamp_min(0) ** weighting
        return self.basis_a[:, :dim] * weights, self.basis_b[:, :dim] * weights


def _project(rows: Tensor, mean: Tensor, basis: Tensor) -> Tensor:
    return ((rows.to(torch.float64) - mean) @ basis).to(torch.float32)


def fit_cca(moments: Moments, regularisations: Sequence[float] = (0.01,), crossed: Tensor | None = None) -> list[CCA]:
    """CCA for each of several strengths of regularisation; the costly decompositions are shared.

    Args:
        moments: of the training pairs.
        regularisations: each is added to the diagonals of both covariances, as a multiple of their mean diagonal.
        crossed: (dim_a, dim_b) what stands in for the covariance between A and B, where other samples than those of
            a pair go together too; it may have any scale, and so have the correlations then.

    Returns:
        one `CCA` for each regularisation.

    Raises:
        ValueError: fewer than two pairs, or a modality that never varies.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> a = torch.randn(200, 3, generator=generator)
        >>> moments = Moments(3, 2)
        >>> moments.add(a, a[:, :2] * 5)
        >>> [round(float(c), 3) for c in fit_cca(moments, (1e-6,))[0].correlations]
        [1.0, 1.0]
    """
    if moments.count < 2:
        raise ValueError(f"CCA needs at least two training pairs, got {moments.count}")
    covariance = moments._covariance()
    split = moments.dim_a
    values_a, vectors_a = _spectrum(covariance[:split, :split], "A")
    values_b, vectors_b = _spectrum(covariance[split:, split:], "B")
    between = covariance[:split, split:] if crossed is None else crossed.to(torch.float64)
    turned = vectors_a.T @ between @ vectors_b  # (dim_a, dim_b), in the two eigenbases
    results = []
    for strength in regularisations:
        white_a = (values_a + strength * values_a.mean()).rsqrt()
        white_b = (values_b + strength * values_b.mean()).rsqrt()
        left, correlations, right = torch.linalg.svd(
            white_a.unsqueeze(1) * turned * white_b, full_matrices=False
        )  # (dim_a, k), (k,), (k, dim_b)
        results.append(
            CCA(
                mean_a=moments.mean_a,
                mean_b=moments.mean_b,
                basis_a=vectors_a @ (white_a.unsqueeze(1) * left),
                basis_b=vectors_b @ (white_b.unsqueeze(1) * right.T),
                correlations=correlations,
            )
        )
    return results


def _spectrum(covariance: Tensor, name: str) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp_min(0)  # rounding may leave tiny negative ones
    if float(values[-1]) <= 0:
        raise ValueError(f"all training rows of modality {name} are equal; CCA has nothing to correlate")
    # Directions without variance would be blown up where there is no regularisation.
    keep = values > values[-1] * 1e-12
    return values[keep], vectors[:, keep]
