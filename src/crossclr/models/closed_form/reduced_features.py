"""One modality's features within their leading directions, with the decomposition of each fold: what settings share."""

import torch
from torch import Tensor

from crossclr.models.closed_form.canonical import Spectrum
from crossclr.models.closed_form.feature_map import FeatureMap, FeatureSpec
from crossclr.models.closed_form.pair_moments import PairMoments

RANK = 512  # leading directions within which settings are compared; a final fit uses all
BLOCK = 4096


class ReducedFeatures:
    """Features of all samples in float32, turned to their leading directions.

    Directions are those of all samples, held-out ones included. They depend on one modality alone, so no pairs leak.

    Args:
        name: the modality.
        rows: (samples, channels).
        present: (samples,) bool.
        spec: which features.
        landmarks: maximum number of landmarks.
    """

    def __init__(self, name: str, rows: Tensor, present: Tensor, spec: FeatureSpec, landmarks: int) -> None:
        self.name, self.present = name, present
        feature_map = FeatureMap.fit(rows[present], spec, landmarks)
        self.channels = feature_map.dim
        features = torch.cat([feature_map(block).float() for block in torch.split(rows[present], BLOCK)])
        moments = PairMoments.of(features, features)
        whole = Spectrum.of(moments.products / moments.count, name)
        leading = whole.vectors[:, -RANK:]  # (features, rank)
        self.values = torch.zeros(len(rows), leading.shape[1])  # 0 where absent
        self.values[present] = (features - moments.mean_x) @ leading
        self._spectra: dict[int, Spectrum] = {}

    def spectrum(self, fold: int, training: Tensor) -> Spectrum:
        """The decomposition over the training rows of one fold, computed once."""
        if fold not in self._spectra:
            rows = self.values[training & self.present]
            self._spectra[fold] = Spectrum.of(covariance(rows, rows), self.name, self.channels)
        return self._spectra[fold]


def covariance(x: Tensor, y: Tensor) -> Tensor:
    """(channels of x, channels of y) of paired rows."""
    moments = PairMoments.of(x, y)
    return moments.products / max(moments.count, 1)
