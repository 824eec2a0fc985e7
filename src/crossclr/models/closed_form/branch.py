"""One modality's encoder as a module for inference and ONNX: normalise, compare with landmarks, project, normalise."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models.closed_form.feature_map import FeatureMap, Similarities
from crossclr.models.closed_form.input_norm import RowNorm


class Branch(nn.Module):
    """Input rows to unit vectors.

    Values are stored in float32 and computed in float64: with a wide kernel all similarities are close to 1, and what
    tells rows apart are their last digits. So every runtime gives the same vectors.

    Args:
        norm: of input rows.
        similarities: with landmarks; None for linear features.
        weight: (landmarks or channels, width).
        bias: (width,).
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, norm: RowNorm, similarities: Similarities | None, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.norm = norm
        self.similarities = similarities
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.float().double()  # what is computed with is what is stored

    @classmethod
    def folded(cls, feature_map: FeatureMap, mean: Tensor, basis: Tensor) -> Branch:
        """A feature map followed by a projection; the map's own basis becomes part of the weight.

        Args:
            feature_map: rows to features.
            mean: (features,) subtracted from the features.
            basis: (features, width).
        """
        weight = basis if feature_map.basis is None else feature_map.basis @ basis
        return cls(feature_map.norm, feature_map.similarities, weight, -mean @ basis)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Branch:
        """Restore a branch from its state."""
        norm = RowNorm(tensors["norm.shift"], tensors["norm.scale"], tensors["norm.unit"])
        similarities = None
        if "similarities.landmarks" in tensors:
            similarities = Similarities(tensors["similarities.landmarks"], tensors["similarities.gamma"])
        return cls(norm, similarities, tensors["weight"], tensors["bias"])

    def tensors(self) -> dict[str, Tensor]:
        """What `from_tensors` needs, in float32."""
        return {key: value.float() if value.is_floating_point() else value for key, value in self.state_dict().items()}

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, channels) to (rows, width)."""
        rows = self.norm(rows.double())
        if self.similarities is not None:
            rows = self.similarities(rows)
        return functional.normalize(torch.addmm(self.bias, rows, self.weight), dim=1).float()
