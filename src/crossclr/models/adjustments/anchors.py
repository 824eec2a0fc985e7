"""Anchors: clips are moved towards the sentences of their nearest training clips.

A model trained on few clips places a new clip only roughly. Its nearest training clips are known better, because their
sentences were seen. Clips move after training and only as search targets: an index still contains plain vectors, a
query costs no more, and a clip that is itself the query does not move.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models.adjustments.subsample import evenly_spaced
from crossclr.models.embeddings import Embeddings
from crossclr.models.model_config import AnchorsConfig

BLOCK = 1024  # clips compared with all training clips at once


class Anchors(nn.Module):
    """Moves the clips of the first modality.

    Args:
        config: number of neighbours, temperature and weight.
        clips: (clips, D) embeddings of the training clips.
        sentences: (clips, D) the mean direction of the sentences of each clip.

    Example:
        >>> anchors = Anchors(AnchorsConfig(neighbours=1, weight=1.0), torch.eye(2), torch.eye(2).flip(1))
        >>> anchors(torch.tensor([[3.0, 0.0]]))  # nearest to the first clip, whose sentences lie along the second axis
        tensor([[1., 1.]])
    """

    clips: Tensor
    sentences: Tensor

    def __init__(self, config: AnchorsConfig, clips: Tensor, sentences: Tensor) -> None:
        super().__init__()
        self.config = config
        # Stored next to the weights, not among them: the weights of a model stay those of training.
        self.register_buffer("clips", functional.normalize(clips, dim=1), persistent=False)
        self.register_buffer("sentences", functional.normalize(sentences, dim=1), persistent=False)

    @classmethod
    def of(cls, config: AnchorsConfig, training: Embeddings) -> Anchors:
        """From embeddings of the training split without anchors."""
        unit = functional.normalize(training.clip_b, dim=1)
        sums = torch.zeros_like(training.clip_a).index_add_(0, training.clip_of, unit)
        has_one = torch.bincount(training.clip_of, minlength=len(sums)) > 0
        rows = torch.nonzero(has_one).flatten()
        rows = rows[evenly_spaced(len(rows), config.most)]
        return cls(config, training.clip_a[rows], sums[rows])

    def forward(self, clips: Tensor) -> Tensor:
        """(clips, D) from (clips, D): unit vectors plus ``weight`` times the unit mean of the neighbours' sentences."""
        return torch.cat([self._moved(part) for part in torch.split(clips, BLOCK)])

    def _moved(self, clips: Tensor) -> Tensor:
        unit = functional.normalize(clips, dim=1)
        near = (unit @ self.clips.T).topk(min(self.config.neighbours, len(self.clips)), dim=1)
        shares = torch.softmax(near.values / self.config.temperature, dim=1)  # (clips, neighbours)
        mean = torch.einsum("ck,ckd->cd", shares, self.sentences[near.indices])
        return unit + self.config.weight * functional.normalize(mean, dim=1)
