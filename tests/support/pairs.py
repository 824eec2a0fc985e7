"""Samples, data sets and embeddings of two modalities, written briefly."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from crossclr.data import Content, Dataset, Sample
from crossclr.models import Embeddings, Vectors


def pair_sample(
    key: str,
    clips: Sequence[Any],
    sentences: Sequence[Any],
    whole: Sequence[Any] = (None, None),
    clip_of: Sequence[int] = (),
    texts: Sequence[str] = (),
    names: tuple[str, str] = ("video", "text"),
    **more: Any,
) -> Sample:
    """A sample of clips and sentences; ``whole`` holds the rows of the whole video and of the whole paragraph."""
    contents = (Content(clips, (), whole[0]), Content(sentences, clip_of, whole[1], tuple(texts)))
    return Sample(key, dict(zip(names, contents, strict=True)), clip_count=len(clips), **more)


def pair_data(
    a: Any,
    b: Any,
    ids: Sequence[str] | None = None,
    owners: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
    names: tuple[str, str] = ("a", "b"),
    **more: Any,
) -> Dataset:
    """Two arrays in memory; ``owners`` names the sample of each row of the second."""
    owned = ids if owners is None else owners
    words = {} if texts is None else {names[1]: texts}
    arrays = dict(zip(names, (a, b), strict=True))
    return Dataset.from_arrays(arrays, ids=dict(zip(names, (ids, owned), strict=True)), texts=words, **more)


def pair_embeddings(
    clips: Tensor,
    sentences: Tensor,
    clip_of: Tensor | None = None,
    videos: tuple[Tensor, Tensor] | None = None,
    contexts: tuple[Tensor, Tensor] | None = None,
    texts: Sequence[str] = (),
    clip_counts: Tensor | None = None,
    clip_keys: Sequence[str] | None = None,
    video_keys: Sequence[str] | None = None,
    groups: Sequence[str] = (),
    names: tuple[str, str] = ("video", "text"),
) -> Embeddings:
    """Embeddings of clips and their sentences; by default one sentence for each clip and one clip for each video."""
    order = torch.arange(len(clips))
    counts = torch.ones(len(clips), dtype=torch.int64) if clip_counts is None else clip_counts
    above: list[dict[str, Any]] = [{}, {}]
    if videos is not None:
        above = [{"videos": rows, "video_of": torch.arange(len(rows))} for rows in videos]
    if contexts is not None:
        above = [{**one, "context": rows} for one, rows in zip(above, contexts, strict=True)]
    owners = order if clip_of is None else clip_of
    vectors = (Vectors(clips, order, **above[0]), Vectors(sentences, owners, tuple(texts), **above[1]))
    return Embeddings(
        dict(zip(names, vectors, strict=True)),
        tuple(clip_keys or map(str, order.tolist())),
        counts,
        tuple(video_keys or map(str, range(len(counts)))),
        tuple(groups),
    )


def read(data: Dataset, key: str, seed: int | None = None) -> Sample:
    """One sample by key: for evaluation, or as training with a seed draws it."""
    chosen = data.where(keys=[key])
    return (chosen if seed is None else chosen.training(seed, 0))[0]


def keys_of(data: Dataset, split: str) -> list[str]:
    """The keys of a split."""
    return list(data.where(split=split).keys)


def first(whole: Any) -> Any:
    """What a sample, a batch's inputs or embeddings have of their first modality."""
    return next(iter(getattr(whole, "modalities", whole).values()))


def second(whole: Any) -> Any:
    """The same of the second modality."""
    return list(getattr(whole, "modalities", whole).values())[1]
