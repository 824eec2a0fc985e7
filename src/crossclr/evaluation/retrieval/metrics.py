"""Recall, median and mean rank: the metrics that retrieval papers print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from crossclr.evaluation.retrieval.ground_truth import Targets
from crossclr.evaluation.retrieval.ranks import Matrix, retrieval_ranks
from crossclr.models.directions import direction_keys
from crossclr.models.embeddings import Embeddings


def recall(ranks: Tensor, cutoff: int) -> float:
    """Percent of queries whose rank is at most ``cutoff``.

    Example:
        >>> import torch
        >>> recall(torch.tensor([1.0, 2.0, 6.0, 100.0]), cutoff=5)
        50.0
    """
    return 100.0 * int((ranks <= cutoff).sum()) / len(ranks)


def median_rank(ranks: Tensor) -> float:
    """The median rank; of an even number of ranks, the mean of the middle two.

    Example:
        >>> import torch
        >>> median_rank(torch.tensor([1.0, 2.0, 6.0, 100.0]))
        4.0
    """
    ordered = ranks.sort().values
    middle = len(ordered) // 2
    return float(ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2)


METRICS: dict[str, Callable[[Tensor], float]] = {
    **{f"R@{cutoff}": partial(recall, cutoff=cutoff) for cutoff in (1, 5, 10, 50)},
    "MdR": median_rank,
    "MnR": lambda ranks: float(ranks.mean()),
}
"""What every table shows: functions of the (queries,) float64 ranks, by name. A new metric is one entry."""


def retrieval_metrics(
    queries: Matrix, gallery: Matrix, targets: Any = None, *, progress: bool | None = None
) -> dict[str, float]:
    """How well queries find their targets in a gallery, by cosine.

    Args:
        queries: (queries, D) array or tensor; need not be normalised.
        gallery: (gallery, D).
        targets: None if query i belongs to gallery row i; else one row number for each query, or a sequence of valid
            row numbers for each query (the best of them counts). See `retrieval_ranks`.
        progress: show a progress bar; None shows it for long computations only.

    Returns:
        ``R@1 R@5 R@10 R@50``: percent of queries whose rank is at most K; ``MdR`` and ``MnR``: median and mean rank.

    Example:
        >>> import torch
        >>> retrieval_metrics(torch.eye(4), torch.eye(4)[[0, 1, 3, 2]])["R@1"]
        50.0
    """
    return rank_metrics(retrieval_ranks(queries, gallery, targets, progress=progress))


def rank_metrics(ranks: Tensor) -> dict[str, float]:
    """The metrics of given ranks (1 is best).

    Example:
        >>> import torch
        >>> rank_metrics(torch.tensor([1.0, 2.0, 6.0, 100.0]))
        {'R@1': 25.0, 'R@5': 50.0, 'R@10': 75.0, 'R@50': 75.0, 'MdR': 4.0, 'MnR': 27.25}
    """
    if len(ranks) == 0:
        raise ValueError("there are no queries, so there is nothing to measure")
    ranks = ranks.to(torch.float64)
    return {name: metric(ranks) for name, metric in METRICS.items()}


def coot_median(ranks: Tensor) -> float:
    """The median rank as COOT reports it: the median of 0-based ranks, rounded down, plus one.

    Args:
        ranks: (queries,) 1-based ranks.

    Example:
        >>> import torch
        >>> coot_median(torch.tensor([1.0, 2.0, 5.0, 9.0]))
        3.0
    """
    return float(int(median_rank(ranks.to(torch.float64) - 1)) + 1)


def flat(results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Metrics by ``level/direction/metric``, as training records them.

    Example:
        >>> flat({"clip/video->text": {"R@1": 5.0}})
        {'clip/video->text/R@1': 5.0}
    """
    return {f"{name}/{metric}": value for name, found in results.items() for metric, value in found.items()}


def evaluate_embeddings(embeddings: Embeddings, *, progress: bool | None = None) -> dict[str, dict[str, float]]:
    """Retrieval metrics between the two modalities, in both directions, at every level of the embeddings.

    Args:
        embeddings: as `embed_source` returns them.
        progress: show progress bars; None shows them for long computations only.

    Returns:
        metrics by direction, such as ``clip/text->video`` and ``clip/video->text``, with the names of the embeddings'
        modalities; for data of two levels also ``video/text->video`` and ``video/video->text``.
    """
    return {name: rank_metrics(ranks) for name, ranks in embedding_ranks(embeddings, progress=progress).items()}


def embedding_ranks(embeddings: Embeddings, *, progress: bool | None = None) -> dict[str, Tensor]:
    """(queries,) rank of every query, by level and direction; `evaluate_embeddings` summarises them.

    Every sentence of a clip is a query for it; if the clip is the query, any of its sentences is correct. Clips without
    a sentence are in the gallery but are no queries.
    """
    queries, sentences = sentences_of(embeddings.clip_of, len(embeddings.clip_a))
    keys = direction_keys(embeddings.modalities)
    ranks = {
        keys["a"]: retrieval_ranks(embeddings.clip_b, embeddings.clip_a, embeddings.clip_of, progress=progress),
        keys["b"]: retrieval_ranks(embeddings.clip_a[queries], embeddings.clip_b, sentences, progress=progress),
    }
    if embeddings.video_a is not None and embeddings.video_b is not None:
        keys = direction_keys(embeddings.modalities, "video")
        ranks[keys["a"]] = retrieval_ranks(embeddings.video_b, embeddings.video_a, progress=progress)
        ranks[keys["b"]] = retrieval_ranks(embeddings.video_a, embeddings.video_b, progress=progress)
    return ranks


def sentences_of(clip_of: Tensor, clips: int) -> tuple[Tensor, Targets]:
    """Invert ``clip_of``: the clips that have sentences, and the sentences of each.

    Example:
        >>> import torch
        >>> asked, targets = sentences_of(torch.tensor([2, 0, 2]), clips=3)
        >>> asked.tolist(), targets.columns.tolist(), targets.counts.tolist()
        ([0, 2], [1, 0, 2], [1, 2])
    """
    counts = torch.bincount(clip_of, minlength=clips)
    asked = counts.nonzero().squeeze(1)
    return asked, Targets(torch.argsort(clip_of, stable=True), counts[asked])
