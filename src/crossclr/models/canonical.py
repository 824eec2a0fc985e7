"""Generalised canonical correlation analysis: directions of all modalities along which their samples correlate most.

Each modality is whitened on the rows that have it, `W_x = (C_xx + ridge)^(-1/2)`. The block matrix with `W_x C_xy W_y`
outside its diagonal and zeros on it is decomposed. Its leading eigenvectors are the directions;
with two modalities they are the singular vectors of one block, which is ordinary CCA.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, combinations

import torch
from torch import Tensor

from crossclr.errors import CrossCLRError
from crossclr.models.pair_moments import Moments

NEGLIGIBLE = 1e-12  # share of the largest variance below which a direction counts as constant
CHOLESKY = 1e-4  # ridge from which a covariance is decomposed by Cholesky's method, which is 20 times faster
UNCORRELATED = 1e-6  # share of the largest correlation below which directions of the larger modality fade


class NothingToCorrelateError(CrossCLRError, ValueError):
    """Too few samples, or samples that are all equal."""


@dataclass(frozen=True)
class Canonical:
    """Directions of all modalities, the most correlated first."""

    # for each modality (channels, k). Without ridge, the projections of training rows have unit variance when there
    # are two modalities.
    bases: Mapping[str, Tensor]
    # (k,) canonical correlations, falling; with more than two modalities, the mean over the others
    correlations: Tensor


class Problem:
    """All that the directions depend on but the ridge.

    Args:
        between: for each pair of modalities (x, y), in the order of ``own``: (channels of x, channels of y)
            covariance between them, or another matrix that says which channels go together. The correlations have
            its scale.
        channels: of modalities of which some channels without variance were dropped: their number before.
    """

    def __init__(
        self,
        own: Mapping[str, Tensor],
        between: Mapping[tuple[str, str], Tensor],
        channels: Mapping[str, int] | None = None,
    ) -> None:
        self.own, self.between = own, between
        sizes = {name: len(covariance) for name, covariance in own.items()} | dict(channels or {})
        self.scales = {name: covariance.diagonal().sum() / sizes[name] for name, covariance in own.items()}
        for name, scale in self.scales.items():
            if float(scale) <= 0:
                raise NothingToCorrelateError(
                    f"all training rows of modality {name!r} are equal; CCA has nothing to correlate"
                )

    @classmethod
    def of(cls, moments: Moments) -> "Problem":
        """The problem of these training samples."""
        for name in moments.names:
            shared = max(moments.count(name, other) for other in moments.names if other != name)
            if shared < 2:
                raise NothingToCorrelateError(
                    f"CCA needs at least two training samples with {name!r} and another modality, got {shared}"
                )
        own = {name: moments.covariance(name, name) for name in moments.names}
        return cls(own, {pair: moments.covariance(*pair) for pair in combinations(moments.names, 2)})

    def solve(self, ridge: Mapping[str, float] | float, width: int | None = None) -> Canonical:
        """The directions for a ridge of each modality, or one for all.

        It is a multiple of the modality's mean variance that is added to all of its variances.
        """
        ridges = ridge if isinstance(ridge, Mapping) else dict.fromkeys(self.own, ridge)
        white = {name: _whitening(own, ridges[name], self.scales[name]) for name, own in self.own.items()}
        blocks = {(x, y): white[x].T @ between @ white[y] for (x, y), between in self.between.items()}
        if len(white) == 2:
            (block,) = blocks.values()
            parts, correlations = _singular(block)
        else:
            parts, correlations = _eigen(blocks, {name: one.shape[1] for name, one in white.items()})
        bases = {name: one @ part[:, :width] for (name, one), part in zip(white.items(), parts, strict=True)}
        return Canonical(bases, correlations[:width])


def _whitening(covariance: Tensor, ridge: float, scale: Tensor) -> Tensor:
    """(channels, kept) a matrix W with W' (covariance + ridge) W = 1; a rotation of it leads to the same directions."""
    if ridge >= CHOLESKY:
        regular = covariance + ridge * scale * torch.eye(len(covariance), dtype=covariance.dtype)
        lower, identity = torch.linalg.cholesky(regular), torch.eye(len(regular), dtype=regular.dtype)
        inverse: Tensor = torch.linalg.solve_triangular(lower, identity, upper=False)
        return inverse.T
    values: Tensor
    vectors: Tensor
    values, vectors = torch.linalg.eigh(covariance)
    keep = values > values[-1] * NEGLIGIBLE  # without ridge, whitening would blow up the others
    return vectors[:, keep] * (values[keep] + ridge * scale).rsqrt()


def _eigen(blocks: Mapping[tuple[str, str], Tensor], sizes: Mapping[str, int]) -> tuple[list[Tensor], Tensor]:
    """Leading eigenvectors of the matrix of all blocks, cut into modalities, and their correlations."""
    some = next(iter(blocks.values()))
    matrix = some.new_zeros(sum(sizes.values()), sum(sizes.values()))
    starts = dict(zip(sizes, [0, *accumulate(sizes.values())], strict=False))
    for (x, y), block in blocks.items():
        rows, columns = slice(starts[x], starts[x] + sizes[x]), slice(starts[y], starts[y] + sizes[y])
        matrix[rows, columns], matrix[columns, rows] = block, block.T
    values, vectors = torch.linalg.eigh(matrix)
    count, modalities = min(sizes.values()), len(sizes)
    leading = vectors.flip(1)[:, :count] * modalities**0.5  # as with two modalities, parts have unit length on average
    return list(leading.split(list(sizes.values()))), (values.flip(0)[:count] / (modalities - 1)).clamp_min(0)


def _singular(block: Tensor) -> tuple[list[Tensor], Tensor]:
    """Singular vectors of both sides and singular values, falling, from the smaller square: half the time of an SVD.

    Where there is no correlation, vectors of the larger side have no length.
    """
    wide = block.shape[0] <= block.shape[1]
    small = block if wide else block.T
    squares, vectors = torch.linalg.eigh(small @ small.T)
    values, vectors = squares.flip(0).clamp_min(0).sqrt(), vectors.flip(1)
    others = small.T @ vectors / values.clamp_min(values[0] * UNCORRELATED)
    return ([vectors, others] if wide else [others, vectors]), values
