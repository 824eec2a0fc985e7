"""Generalised canonical correlation analysis: directions of all modalities along which their samples correlate most.

Each modality is whitened on the rows that have it, `W_x = (C_xx + ridge)^(-1/2)`. The block matrix with `W_x C_xy W_y`
outside its diagonal and zeros on it is decomposed. Its leading eigenvectors are the directions;
with two modalities they are the singular vectors of one block, which is ordinary CCA.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations

import torch
from torch import Tensor

from crossclr.models.closed_form.pair_moments import Moments

NEGLIGIBLE = 1e-12  # share of the largest variance below which a direction counts as constant
UNCORRELATED = 1e-6  # share of the largest correlation below which directions of the larger modality fade


@dataclass(frozen=True)
class Canonical:
    """Directions of all modalities, the most correlated first.

    Args:
        bases: for each modality (channels, k). Without ridge, the projections of training rows have unit variance
            when there are two modalities.
        correlations: (k,) canonical correlations, falling; with more than two modalities, the mean over the others.
    """

    bases: Mapping[str, Tensor]
    correlations: Tensor


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues and eigenvectors of one modality's covariance: the costly part, shared by all ridges.

    Args:
        values: (kept,) variances, rising; directions without variance are dropped.
        vectors: (channels, kept).
        scale: mean variance of a channel, the unit of the ridge.
    """

    values: Tensor
    vectors: Tensor
    scale: Tensor

    @classmethod
    def of(cls, covariance: Tensor, name: str, channels: int | None = None) -> Spectrum:
        """Decompose a covariance.

        Args:
            covariance: (channels, channels).
            name: the modality, for the error that its rows never vary.
            channels: before some without variance were dropped.
        """
        values, vectors = torch.linalg.eigh(covariance)
        values = values.clamp_min(0)  # rounding may leave tiny negative ones
        if float(values[-1]) <= 0:
            raise ValueError(f"all training rows of modality {name!r} are equal; CCA has nothing to correlate")
        keep = values > values[-1] * NEGLIGIBLE  # without ridge, whitening would blow up the others
        return cls(values[keep], vectors[:, keep], values.sum() / (channels or len(values)))


class Problem:
    """All that the directions depend on but the ridge.

    Args:
        spectra: of each modality.
        between: for each pair of modalities (x, y), in the order of ``spectra``: (channels of x, channels of y)
            covariance between them, or another matrix that says which channels go together. The correlations have its
            scale.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> video = torch.randn(200, 3, generator=generator)
        >>> moments = Moments({"video": 3, "text": 2})
        >>> moments.add({"video": video, "text": video[:, :2] * 5})
        >>> [round(float(c), 3) for c in Problem.of(moments).solve(1e-6).correlations]
        [1.0, 1.0]
    """

    def __init__(self, spectra: Mapping[str, Spectrum], between: Mapping[tuple[str, str], Tensor]) -> None:
        self.names = tuple(spectra)
        self.spectra = spectra
        self.turned = {
            (x, y): spectra[x].vectors.T @ between[x, y] @ spectra[y].vectors for x, y in combinations(self.names, 2)
        }  # in the eigenbases: (kept of x, kept of y)

    @classmethod
    def of(cls, moments: Moments, between: Mapping[tuple[str, str], Tensor] | None = None) -> Problem:
        """The problem of these training samples.

        Args:
            moments: of the samples.
            between: replaces the covariances between modalities, if more than the samples' own rows belong together.

        Raises:
            ValueError: a modality never varies, or shares fewer than two samples with each of the others.
        """
        for name in moments.names:
            shared = max(moments.count(name, other) for other in moments.names if other != name)
            if shared < 2:
                raise ValueError(
                    f"CCA needs at least two training samples with {name!r} and another modality, got {shared}"
                )
        spectra = {name: Spectrum.of(moments.covariance(name, name), name) for name in moments.names}
        return cls(spectra, between or {pair: moments.covariance(*pair) for pair in combinations(moments.names, 2)})

    def solve(self, ridge: float, width: int | None = None) -> Canonical:
        """The directions for one strength of regularisation.

        Args:
            ridge: added to all variances, as a multiple of the modality's mean variance.
            width: number of directions; all by default.
        """
        white = {x: (one.values + ridge * one.scale).rsqrt() for x, one in self.spectra.items()}
        blocks = {(x, y): white[x].unsqueeze(1) * turned * white[y] for (x, y), turned in self.turned.items()}
        if len(self.names) == 2:
            (block,) = blocks.values()
            parts, correlations = _singular(block)
        else:
            parts, correlations = _eigen(blocks, {x: len(values) for x, values in white.items()})
        bases = {
            name: self.spectra[name].vectors @ (white[name].unsqueeze(1) * part[:, :width])
            for name, part in zip(self.names, parts, strict=True)
        }
        return Canonical(bases, correlations[:width])


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


@dataclass(frozen=True)
class CCA(Canonical):
    """Linear CCA of two modalities. It needs no training, so it is the baseline that a learned embedding has to beat.

    Args:
        means: by modality, (channels,) subtracted from its rows.
    """

    means: Mapping[str, Tensor]

    def encode(self, modality: str, rows: Tensor, dim: int | None = None, weighting: float = 0.0) -> Tensor:
        """(rows, dim) float32 coordinates of a modality's rows (rows, channels) in the common space.

        Args:
            modality: its name.
            rows: the rows.
            dim: number of directions, the most correlated first; None uses all.
            weighting: multiplies each coordinate by its correlation to this power, so that weakly correlated directions
                count less in a cosine.
        """
        centred = rows.to(torch.float64) - self.means[modality]
        return (centred @ self.directions(modality, dim, weighting)).to(torch.float32)

    def directions(self, modality: str, dim: int | None = None, weighting: float = 0.0) -> Tensor:
        """(channels, dim) matrix that `encode` multiplies centred rows by."""
        return self.bases[modality][:, :dim] * self.correlations[:dim] ** weighting


def fit_cca(moments: Moments, regularisations: Sequence[float] = (0.01,), between: Tensor | None = None) -> list[CCA]:
    """Fit CCA for several strengths of regularisation; they share the costly decompositions.

    Args:
        moments: of the training pairs.
        regularisations: each is added to the diagonals of both covariances, as a multiple of their mean diagonal.
        between: (dim, dim) replaces the covariance between the modalities, if more samples than those of a pair belong
            together. Correlations then have its scale.

    Returns:
        one `CCA` for each regularisation.

    Raises:
        ValueError: fewer than two pairs, or a modality that never varies.

    Example:
        >>> rows = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> moments = Moments({"video": 3, "text": 2})
        >>> moments.add({"video": rows, "text": rows[:, :2] * 5})
        >>> [round(float(c), 3) for c in fit_cca(moments, (1e-6,))[0].correlations]
        [1.0, 1.0]
    """
    x, y = moments.names
    problem = Problem.of(moments, None if between is None else {(x, y): between.to(torch.float64)})
    means = {name: moments.mean(name) for name in (x, y)}
    found = [problem.solve(strength) for strength in regularisations]
    return [CCA(one.bases, one.correlations, means) for one in found]
