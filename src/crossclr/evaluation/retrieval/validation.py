"""Retrieval on the validation split, as training uses it."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from crossclr.evaluation.retrieval.metrics import evaluate_embeddings, flat
from crossclr.features import Source
from crossclr.models import TwoBranch, embed_source
from crossclr.training.trainable import Progress, Validate, Validation


def retrieval_validator(source: Source, split: str | None, batch_size: int) -> Validate | None:
    """A function that embeds a split with a model and measures retrieval; None if there is no split.

    Args:
        source: the data.
        split: its validation split.
        batch_size: samples that are embedded at once.
    """
    if split is None:
        return None

    def validate(model: TwoBranch, progress: Progress | None = None) -> Validation:
        embeddings = embed_source(model, source, split, batch_size, model.device, progress)
        cosines = [mean_cosine(rows) for rows in (embeddings.clip_a, embeddings.clip_b)]
        facts = {"gallery": float(len(embeddings.clip_a)), "mean_cosine": max(cosines)}
        return Validation(flat(evaluate_embeddings(embeddings, progress=False)), facts)

    return validate


def mean_cosine(rows: Tensor) -> float:
    """The mean cosine between two different rows; near 1 means that the embeddings have collapsed.

    Args:
        rows: (count, dim); need not be normalised.

    Example:
        >>> import torch
        >>> round(mean_cosine(torch.eye(4)), 6), round(mean_cosine(torch.ones(4, 2)), 6)
        (0.0, 1.0)
    """
    count = len(rows)
    if count < 2:
        return 0.0
    total = functional.normalize(rows.double(), dim=1).sum(dim=0)  # its squared length sums all pairs of cosines
    return (float(total @ total) - count) / (count * (count - 1))
