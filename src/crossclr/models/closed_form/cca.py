"""Canonical correlation analysis (CCA) in closed form, from moments that are accumulated batch by batch.

CCA finds pairs of directions, one in each modality, along which paired samples correlate most. It needs no training,
so it is the baseline that a learned embedding has to beat. Modalities are known by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class Moments:
    """Means and covariances of paired rows, in memory that does not grow with their number.

    Args:
        dims: channels of each of two modalities, by name.

    Example:
        >>> moments = Moments({"video": 2, "text": 1})
        >>> moments.add({"video": torch.tensor([[1.0, 0.0], [3.0, 0.0]]), "text": torch.tensor([[5.0], [7.0]])})
        >>> moments.count, moments.mean("video").tolist(), moments.covariance("video", "text").tolist()
        (2, [2.0, 0.0], [[1.0], [0.0]])
    """

    def __init__(self, dims: Mapping[str, int]) -> None:
        self.count, self.names = 0, tuple(dims)
        total = sum(dims.values())
        ends = torch.tensor(list(dims.values())).cumsum(0).tolist()
        self._places = {name: slice(end - dims[name], end) for name, end in zip(dims, ends, strict=True)}
        # Sums are taken around the mean of the first rows: large means would cost digits.
        self._shift = torch.zeros(total, dtype=torch.float64)
        self._sum = torch.zeros(total, dtype=torch.float64)
        self._products = torch.zeros(total, total, dtype=torch.float64)

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Add (rows, dim) of each modality; row i of one belongs to row i of the other."""
        wanted = {name: place.stop - place.start for name, place in self._places.items()}
        found = {name: rows[name].shape[1] for name in self.names}
        if found != wanted or len({len(rows[name]) for name in self.names}) != 1:
            shapes = {name: tuple(rows[name].shape) for name in self.names}
            raise ValueError(f"expected paired rows with {wanted} channels, got shapes {shapes}")
        joined = torch.cat([rows[name] for name in self.names], dim=1).to(torch.float64)  # (rows, all channels)
        bad = ~torch.isfinite(joined)
        if bool(bad.any()):
            row, channel = bad.nonzero()[0].tolist()
            name = next(name for name, place in self._places.items() if place.start <= channel < place.stop)
            raise ValueError(
                f"training pair {self.count + row} holds NaN or infinity in modality {name!r}, channel "
                f"{channel - self._places[name].start}; `crossclr data check` names the sample"
            )
        if self.count == 0:
            self._shift = joined.mean(dim=0)
        joined -= self._shift
        self._sum += joined.sum(dim=0)
        self._products.addmm_(joined.T, joined)
        self.count += len(joined)

    def mean(self, modality: str) -> Tensor:
        """(dim,) mean row of a modality."""
        return (self._shift + self._sum / self.count)[self._places[modality]]

    def covariance(self, one: str, other: str) -> Tensor:
        """(dim of one, dim of other) covariance, divided by the number of rows."""
        x, y = self._places[one], self._places[other]
        mean = self._sum / self.count
        return self._products[x, y] / self.count - torch.outer(mean[x], mean[y])


@dataclass(frozen=True)
class CCA:
    """Canonical directions of two modalities, the most correlated first.

    Args:
        means: by modality, (dim,) subtracted from its rows.
        bases: by modality, (dim, k) directions; the projections of the training rows have unit variance (less with
            regularisation).
        correlations: (k,) canonical correlations, falling.
    """

    means: Mapping[str, Tensor]
    bases: Mapping[str, Tensor]
    correlations: Tensor

    def encode(self, modality: str, rows: Tensor, dim: int | None = None, weighting: float = 0.0) -> Tensor:
        """(rows, dim) float32 coordinates of a modality's rows in the common space.

        Args:
            modality: its name.
            rows: (rows, channels).
            dim: number of directions, the most correlated first; None uses all.
            weighting: multiplies each coordinate by its correlation to this power, so that weakly correlated directions
                count less in a cosine.
        """
        centred = rows.to(torch.float64) - self.means[modality]
        return (centred @ self.directions(modality, dim, weighting)).to(torch.float32)

    def directions(self, modality: str, dim: int | None = None, weighting: float = 0.0) -> Tensor:
        """(channels, dim) matrix that `encode` multiplies centred rows by."""
        return self.bases[modality][:, :dim] * self.correlations[:dim].clamp_min(0) ** weighting


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
    if moments.count < 2:
        raise ValueError(f"CCA needs at least two training pairs, got {moments.count}")
    x, y = moments.names
    values_x, vectors_x = _spectrum(moments, x)
    values_y, vectors_y = _spectrum(moments, y)
    crossed = moments.covariance(x, y) if between is None else between.to(torch.float64)
    turned = vectors_x.T @ crossed @ vectors_y  # in the two eigenbases
    results = []
    for strength in regularisations:
        white_x = (values_x + strength * values_x.mean()).rsqrt()
        white_y = (values_y + strength * values_y.mean()).rsqrt()
        whitened = white_x.unsqueeze(1) * turned * white_y
        left, correlations, right = torch.linalg.svd(whitened, full_matrices=False)  # (dim x, k), (k,), (k, dim y)
        bases = {
            x: vectors_x @ (white_x.unsqueeze(1) * left),
            y: vectors_y @ (white_y.unsqueeze(1) * right.T),
        }
        results.append(CCA({name: moments.mean(name) for name in (x, y)}, bases, correlations))
    return results


def _spectrum(moments: Moments, modality: str) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(moments.covariance(modality, modality))
    values = values.clamp_min(0)  # rounding may leave tiny negative ones
    if float(values[-1]) <= 0:
        raise ValueError(f"all training rows of modality {modality!r} are equal; CCA has nothing to correlate")
    # Without regularisation, directions without variance would be blown up.
    keep = values > values[-1] * 1e-12
    return values[keep], vectors[:, keep]
