"""A trained model as a part of a search space."""

import torch
from torch import Tensor, nn

from crossclr.features.batch import Inputs
from crossclr.features.ragged import Ragged
from crossclr.models.joint_model import JointModel

BLOCK = 512  # sequences that are encoded at once


class TrainedEncoder(nn.Module):
    """Embeds sequences of one modality with a trained model."""

    def __init__(self, model: JointModel) -> None:
        super().__init__()
        self.model = model.eval()

    @torch.no_grad()
    def clip_vectors(self, modality: str, rows: Ragged) -> Tensor:
        """(sequences, width) embeddings."""
        if len(rows) <= BLOCK:
            return self.model.encode_modality(modality, Inputs(rows))["clip"]
        sequences = rows.split()
        parts = [Ragged.from_list(sequences[start : start + BLOCK]) for start in range(0, len(sequences), BLOCK)]
        return torch.cat([self.model.encode_modality(modality, Inputs(part))["clip"] for part in parts])
