"""Whether neighbours in the input space stay neighbours in the joint space: the paper's first claim."""

import numpy as np
import torch
from torch import Tensor

from crossclr.evaluation.retrieval.ranks import Matrix

NEIGHBOURS = 10
ANCHORS = 2_000  # samples that are examined; all others still count as neighbours
ROWS = 256


def neighbours_kept(inputs: Matrix, outputs: Matrix, k: int = NEIGHBOURS, anchors: int = ANCHORS) -> float:
    """Percent of each sample's k nearest neighbours in the input that are among its k nearest in the joint space.

    Both are measured within one modality, by cosine. Samples with equal input rows (the same caption twice) count as
    one: they are neighbours in every space. Large sets are subsampled evenly.

    Args:
        inputs: (samples, D) input features, one row each.
        outputs: (samples, D') embeddings of the same samples.
        k: how many neighbours; at most all others.
        anchors: maximum number of samples to examine.

    Returns:
        percent; of a random embedding it is 100 · k / (samples - 1).

    Example:
        >>> rows = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
        >>> neighbours_kept(rows, 3 * rows)
        100.0
    """
    before, after = (torch.as_tensor(np.asarray(rows), dtype=torch.float32) for rows in (inputs, outputs))
    if len(before) != len(after):
        raise ValueError(f"there are {len(before)} input rows but {len(after)} embeddings; give the same samples")
    _, first = np.unique(before.numpy(), axis=0, return_index=True)
    kept = torch.from_numpy(np.sort(first))
    before, after = before[kept], after[kept]
    k = min(k, len(kept) - 1)
    if k < 1:
        raise ValueError(f"{len(kept)} different samples have no neighbours; at least two are needed")
    chosen = torch.arange(0, len(kept), max(1, -(-len(kept) // anchors)))
    with torch.inference_mode():
        spaces = [torch.nn.functional.normalize(rows, dim=1) for rows in (before, after)]
        total = 0
        for rows in torch.split(chosen, ROWS):
            old, new = (_nearest(space, rows, k) for space in spaces)  # (rows, k)
            total += int((old.unsqueeze(2) == new.unsqueeze(1)).sum())
    return 100 * total / (k * len(chosen))


def _nearest(space: Tensor, rows: Tensor, k: int) -> Tensor:
    scores = space[rows] @ space.T
    scores[torch.arange(len(rows)), rows] = -torch.inf  # no sample is its own neighbour
    return scores.topk(k, dim=1).indices
