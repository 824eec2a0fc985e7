"""Retrieval on the validation split, as training uses it."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from crossclr.evaluation.retrieval.metrics import METRICS, evaluate_embeddings, flat
from crossclr.features import Source
from crossclr.models import JointModel, embed_source
from crossclr.models.directions import directions_of
from crossclr.training import ConfigError
from crossclr.training.trainable import Progress, Validate, Validation


def retrieval_validator(source: Source, split: str | None, batch_size: int) -> Validate | None:
    """A function that embeds a split with a model and measures retrieval; None if there is no split."""
    if split is None:
        return None

    def validate(model: JointModel, progress: Progress | None = None) -> Validation:
        embeddings = embed_source(model, source, split, batch_size, model.device, progress)
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
        crossclr.training.config.config_files.ConfigError: validation.select_by: the data has no direction ...
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
