"""Recall, median and mean rank: the metrics that retrieval papers print.

Retrieval on the validation split, as training uses it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from crossclr.data import Dataset
from crossclr.evaluation.ranks import Matrix, Targets, retrieval_ranks
from crossclr.models import JointModel, embed_data
from crossclr.models.directions import Direction, directions_of
from crossclr.models.embeddings import Embeddings
from crossclr.progress_bar import Progress
from crossclr.training import ConfigError
from crossclr.training.loop import Validate, Validation


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
    return float(np.median(ranks))


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


def evaluate_embeddings(
    embeddings: Embeddings, *, fused: Sequence[str] = (), progress: bool | None = None
) -> dict[str, dict[str, float]]:
    """Retrieval metrics from every modality to every other, at every level of the embeddings.

    Args:
        embeddings: as `embed_data` returns them.
        fused: more directions at clip level, with queries or galleries of several modalities: ``text->video+picture``.
            The vector of such an item is the normalised mean of its present unit vectors.
        progress: show progress bars; None shows them for long computations only.

    Returns:
        metrics by direction, such as ``clip/text->video`` and ``clip/video->text``, with the names of the embeddings'
        modalities; for data of two levels also ``video/text->video`` and ``video/video->text``.
    """
    ranks = embedding_ranks(embeddings, fused=fused, progress=progress)
    return {name: rank_metrics(found) for name, found in ranks.items()}


def embedding_ranks(
    embeddings: Embeddings, *, fused: Sequence[str] = (), progress: bool | None = None
) -> dict[str, Tensor]:
    """(queries,) rank of every query, by level and direction; `evaluate_embeddings` summarises them.

    Every sentence of a clip is a query for it; if the clip is the query, any of its sentences is correct. Clips that
    lack the searched modality are no queries, and those that lack the modality of the queries are in the gallery. If
    the data has concepts, any clip of the same concept is correct. A direction that no sample has is omitted.
    """
    ranks = {}
    levels = [directions_of(embeddings.names, level) for level in ("clip", "video")]
    for key in (*levels[0], *(f"clip/{words}" for words in fused), *levels[1]):
        direction = Direction.parse(key)
        both = set(direction.query.split("+")) & set(direction.searched.split("+"))
        if both and key.removeprefix("clip/") in fused:
            raise ValueError(f"{key!r} searches {', '.join(sorted(both))} with itself; name other modalities")
        query = _rows(embeddings, direction.query, direction.level)
        searched = _rows(embeddings, direction.searched, direction.level, searched=True)
        if query is None or searched is None:
            continue
        owners = query[1], searched[1]
        if direction.level == "clip" and embeddings.concepts is not None:  # any clip that shows the same is right
            concepts = torch.unique(embeddings.concepts, return_inverse=True)[1]
            owners = concepts[query[1]], concepts[searched[1]]
        asked, targets = targets_between(*owners)
        if len(asked):
            ranks[key] = retrieval_ranks(
                query[0][asked], searched[0], targets, experts=embeddings.expert_count, progress=progress
            )
    return ranks


def _rows(embeddings: Embeddings, name: str, level: str, searched: bool = False) -> tuple[Tensor, Tensor] | None:
    """The rows of a modality, or of several that are fused, and the clip or video of each."""
    if name in embeddings.modalities or "+" not in name:
        return embeddings[name].at(level, searched)
    return embeddings.fused(name.split("+"), level, searched)


def fused_directions(modalities: Sequence[str]) -> list[str]:
    """From each modality to all others fused, and back; nothing for two modalities.

    Example:
        >>> fused_directions(["video", "sound", "text"])[:2]
        ['video->sound+text', 'sound+text->video']
    """
    if len(modalities) < 3:
        return []
    others = {name: "+".join(other for other in modalities if other != name) for name in modalities}
    return [words for name, rest in others.items() for words in (f"{name}->{rest}", f"{rest}->{name}")]


def targets_between(query_of: Tensor, item_of: Tensor) -> tuple[Tensor, Targets]:
    """The queries that have a target in the gallery, and the targets of each: the items of the same clip.

    Example:
        >>> import torch
        >>> asked, targets = targets_between(torch.arange(3), torch.tensor([2, 0, 2]))
        >>> asked.tolist(), targets.columns.tolist(), targets.counts.tolist()
        ([0, 2], [1, 0, 2], [1, 2])
    """
    clips = 1 + max((int(places.max()) for places in (query_of, item_of) if len(places)), default=-1)
    counts = torch.bincount(item_of, minlength=clips)
    asked = (counts[query_of] > 0).nonzero().flatten()
    order, first = torch.argsort(item_of, stable=True), counts.cumsum(0) - counts
    own, start = counts[query_of[asked]], first[query_of[asked]]
    within = torch.arange(int(own.sum())) - torch.repeat_interleave(own.cumsum(0) - own, own)
    return asked, Targets(order[torch.repeat_interleave(start, own) + within], own)


def retrieval_validator(data: Dataset, batch_size: int) -> Validate:
    """A function that embeds samples with a model and measures retrieval."""

    def validate(model: JointModel, progress: Progress | None = None) -> Validation:
        embeddings = embed_data(model, data, batch_size, model.device, progress)
        cosines = [mean_cosine(vectors.rows) for vectors in embeddings.modalities.values()]
        facts = {"gallery": float(len(embeddings.clip_keys)), "mean_cosine": max(cosines)}
        return Validation(flat(evaluate_embeddings(embeddings, progress=False)), facts)

    return validate


def check_selection(name: str, modalities: Sequence[str]) -> None:
    """Check that validation measures what ``validation.select_by`` names: a level or direction, and a metric.

    Example:
        >>> check_selection("clip/text->video/R@1", ("video", "text"))
        >>> check_selection("clip/text->image/R@1", ("video", "text"))
        Traceback (most recent call last):
        ...
        crossclr.training.config_files.ConfigError: validation.select_by: the data has no direction ...
    """
    direction, _, metric = name.rpartition("/")
    level = direction.partition("/")[0]
    known = directions_of(modalities, level)
    if direction not in (level, *known):
        raise ConfigError(
            f"validation.select_by: the data has no direction {direction!r}; choose {' or '.join(known)}, or "
            f"{level}/{metric} for the mean of all"
        )
    if metric not in METRICS:
        raise ConfigError(f"validation.select_by: there is no metric {metric!r}; choose one of {', '.join(METRICS)}")


def mean_cosine(rows: Tensor) -> float:
    """The mean cosine between two different rows (count, dim); near 1 means that the embeddings have collapsed.

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
