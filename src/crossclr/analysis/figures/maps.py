"""A map of the joint space: t-SNE of both modalities, coloured by group."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from crossclr.evaluation.meaning.words import content_words
from crossclr.models import Embeddings, Vectors

MOST = 700  # clips on a map
GROUPS = 12  # colours that are easy to distinguish
NEIGHBOURS = 10


@dataclass(frozen=True)
class Map:
    """Points of clips and sentences in the plane."""

    loss: str  # the name of the loss
    clips: npt.NDArray[np.float64]  # (points, 2) places of clips
    sentences: npt.NDArray[np.float64]  # (points, 2) places of one sentence of each of these clips
    keys: list[str]  # the clips' keys
    texts: list[str]  # the sentences
    groups: list[str]  # a label for each point
    agreement: float  # percent of the ten nearest texts in the joint space with the same label


@dataclass(frozen=True)
class Points:
    """The clips that are shown and their labels, the same for the maps of all losses."""

    clips: list[int]
    sentences: list[int]
    groups: list[str]


def choose_points(embeddings: Embeddings, inputs: Embeddings) -> Points:
    """Choose evenly spaced clips with a sentence and a label each.

    Labels are the groups of the data if they are few. Otherwise (each video is a group of its own) sentences are
    clustered by their input features, and a cluster is named after its most typical words.
    """
    items, texts = embeddings.pair()
    first = first_sentences(texts)
    clips = sorted(first)
    clips = clips[:: max(1, -(-len(clips) // MOST))]
    sentences = [first[clip] for clip in clips]
    video = torch.repeat_interleave(torch.arange(len(embeddings.clip_counts)), embeddings.clip_counts)
    own = [embeddings.groups[int(video[items.clip_of[clip]])] for clip in clips] if embeddings.groups else []
    if own and len(set(own)) <= max(GROUPS, len(clips) // 20):
        return Points(clips, sentences, _largest(own))
    return Points(clips, sentences, _clusters(inputs, texts.texts, sentences))


def tsne(loss: str, embeddings: Embeddings, points: Points) -> Map:
    """The map of an embedding."""
    clips, sentences = embeddings.pair()
    a, b = normalize(clips.rows[points.clips], dim=1), normalize(sentences.rows[points.sentences], dim=1)
    places = plane(torch.cat([a, b]))
    near = (b @ b.T).fill_diagonal_(-torch.inf).topk(min(NEIGHBOURS, len(b) - 1), dim=1).indices
    labels = {group: number for number, group in enumerate(dict.fromkeys(points.groups))}
    number = torch.tensor([labels[group] for group in points.groups])
    agreement = 100 * float((number[near] == number.unsqueeze(1)).double().mean())
    return Map(
        loss=loss,
        clips=places[: len(a)],
        sentences=places[len(a) :],
        keys=[embeddings.clip_keys[clips.clip_of[clip]] for clip in points.clips],
        texts=[sentences.texts[number] if sentences.texts else "" for number in points.sentences],
        groups=points.groups,
        agreement=agreement,
    )


def sentence(maps: Sequence[Map]) -> str:
    """How often neighbours share their label."""
    first = max(maps, key=lambda one: one.agreement)
    parts = ", ".join(f"{one.loss} {one.agreement:.1f}%" for one in maps)
    return (
        f"Share of a text's ten nearest texts in the joint space with the same colour: {parts}; {first.loss} has the "
        "highest. Filled marks are clips, rings are their texts."
    )


def first_sentences(sentences: Vectors) -> dict[int, int]:
    """The number of the first sentence of each clip that has one."""
    first: dict[int, int] = {}
    for sentence, clip in enumerate(sentences.clip_of.tolist()):
        first.setdefault(clip, sentence)
    return first


def plane(rows: Tensor) -> npt.NDArray[np.float64]:
    """Places of rows in the plane by t-SNE: (rows, 2)."""
    from openTSNE import TSNE

    perplexity = min(30.0, (len(rows) - 1) / 3.5)
    how = TSNE(perplexity=perplexity, metric="cosine", initialization="pca", random_state=0, n_jobs=1)
    return np.asarray(how.fit(rows.double().numpy()))


def _largest(groups: list[str]) -> list[str]:
    known = {group for group, _ in Counter(groups).most_common(GROUPS)}
    return [group if group in known else "other" for group in groups]


def _clusters(inputs: Embeddings, texts: Sequence[str], sentences: list[int]) -> list[str]:
    from sklearn.cluster import KMeans

    rows = normalize(inputs.pair()[1].rows[sentences], dim=1).numpy()
    count = min(GROUPS, max(2, len(rows) // 10))
    found = KMeans(count, n_init=4, random_state=0).fit_predict(rows)
    if not texts:
        return [f"cluster {number + 1}" for number in found]
    everywhere = Counter(word for sentence in sentences for word in content_words(texts[sentence]))
    names: dict[int, str] = {}
    for cluster in range(count):
        members = [s for s, number in zip(sentences, found, strict=True) if number == cluster]
        words = Counter(word for member in members for word in content_words(texts[member]))
        typical = sorted(words, key=lambda word: (-(words[word] ** 2) / everywhere[word], word))[:3]
        name = ", ".join(typical) or f"cluster {cluster + 1}"
        names[cluster] = name if name not in names.values() else f"{name} ({cluster + 1})"
    return [names[int(number)] for number in found]
