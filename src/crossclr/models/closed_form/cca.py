"""Linear CCA of two modalities: the closed form with linear features, for several strengths of regularisation.

CCA finds pairs of directions, one in each modality, along which paired samples correlate most. It needs no training,
so it is the baseline that a learned embedding has to beat.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crossclr.models.closed_form.canonical import Problem
from crossclr.models.closed_form.pair_moments import Moments


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
    return [CCA(means, one.bases, one.correlations) for one in found]
