"""Feature rows to unit vectors, by one encoder of a model."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from crossclr.features import Inputs, Ragged
from crossclr.models import JointModel, SearchSpace
from crossclr.search.index.contract import Vectors, unit


def encode_rows(
    model: JointModel | SearchSpace,
    modality: str,
    rows: Sequence[npt.NDArray[np.float32]],
    batch_size: int = 256,
    as_items: bool = False,
) -> Vectors:
    """(sequences, dim) unit vectors of sequences (rows, channels), as queries or as search targets, where the model is.

    Example:
        >>> from crossclr.models import ModelConfig, build_model
        >>> model = build_model(ModelConfig(dim=16), dims={"video": 3, "text": 5}, two_level=False).eval()
        >>> encode_rows(model, "text", [np.ones((7, 5), np.float32), np.ones((1, 5), np.float32)]).shape
        (2, 16)
    """
    parts = []
    with torch.inference_mode():
        for start in range(0, len(rows), batch_size):
            block = Ragged.from_list([torch.tensor(part) for part in rows[start : start + batch_size]])
            found = model.encode_modality(modality, Inputs(block).to(model.device))
            parts.append((found.get("items", found["clip"]) if as_items else found["clip"]).float().cpu())
    return unit(torch.cat(parts).numpy())
