"""A map of the joint space: t-SNE of both modalities, coloured by group.

Cosines of positive and negative pairs in the joint space.

The connectivity graph: samples with similar inputs are linked, influential ones are marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from crossclr.evaluation.tsne import tsne
from crossclr.evaluation.words import content_words
from crossclr.losses.influence import connectivity, influential
from crossclr.models import Embeddings, Vectors

MAX_MAP_CLIPS = 700  # clips on a map
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
    clips = clips[:: max(1, -(-len(clips) // MAX_MAP_CLIPS))]
    sentences = [first[clip] for clip in clips]
    video = torch.repeat_interleave(torch.arange(len(embeddings.clip_counts)), embeddings.clip_counts)
    groups = [embeddings.groups[int(video[items.clip_of[clip]])] for clip in clips] if embeddings.groups else []
    if groups and len(set(groups)) <= max(GROUPS, len(clips) // 20):
        return Points(clips, sentences, _largest(groups))
    return Points(clips, sentences, _clusters(inputs, texts.texts, sentences))


def joint_map(loss: str, embeddings: Embeddings, points: Points) -> Map:
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


def map_sentence(maps: Sequence[Map]) -> str:
    """How often neighbours share their label."""
    first = max(maps, key=lambda drawn: drawn.agreement)
    parts = ", ".join(f"{drawn.loss} {drawn.agreement:.1f}%" for drawn in maps)
    return (
        f"Share of a text's ten nearest texts in the joint space with the same colour: {parts}; {first.loss} has the "
        "highest. Filled marks are clips, rings are their texts."
    )


def first_sentences(sentences: Vectors) -> dict[int, int]:
    """The number of the first sentence of each clip that has one."""
    first: dict[int, int] = {}
    for map_sentence, clip in enumerate(sentences.clip_of.tolist()):
        first.setdefault(clip, map_sentence)
    return first


def plane(rows: Tensor) -> npt.NDArray[np.float64]:
    """Places of rows in the plane by t-SNE: (rows, 2)."""
    unit = normalize(rows, dim=1).numpy().astype(np.float32)
    return tsne(unit, min(30.0, (len(unit) - 1) / 4)).astype(np.float64)


def _largest(groups: list[str]) -> list[str]:
    known = {group for group, _ in Counter(groups).most_common(GROUPS)}
    return [group if group in known else "other" for group in groups]


def _clusters(inputs: Embeddings, texts: Sequence[str], sentences: list[int]) -> list[str]:
    from sklearn.cluster import KMeans

    rows = normalize(inputs.pair()[1].rows[sentences], dim=1).numpy()
    count = min(GROUPS, max(2, len(rows) // 10))
    labels = KMeans(count, n_init=4, random_state=0).fit_predict(rows)
    if not texts:
        return [f"cluster {number + 1}" for number in labels]
    everywhere = Counter(word for map_sentence in sentences for word in content_words(texts[map_sentence]))
    names: dict[int, str] = {}
    for cluster in range(count):
        members = [s for s, number in zip(sentences, labels, strict=True) if number == cluster]
        words = Counter(word for member in members for word in content_words(texts[member]))
        typical = sorted(words, key=lambda word: (-(words[word] ** 2) / everywhere[word], word))[:3]
        name = ", ".join(typical) or f"cluster {cluster + 1}"
        names[cluster] = name if name not in names.values() else f"{name} ({cluster + 1})"
    return [names[int(number)] for number in labels]


BINS = 100
NEGATIVES = 200_000  # pairs sampled for the histogram of negatives


@dataclass(frozen=True)
class Histogram:
    """A histogram of cosines with mean and variance."""

    density: list[float]  # (BINS,) share of pairs for each bin from -1 to 1, as a density
    mean: float  # mean cosine
    variance: float  # variance of the cosines

    @classmethod
    def of(cls, cosines: npt.NDArray[np.float64]) -> Histogram:
        """The histogram of some cosines.

        Example:
            >>> found = Histogram.of(np.array([0.0, 0.5, 1.0]))
            >>> found.mean, round(found.variance, 4), len(found.density)
            (0.5, 0.1667, 100)
        """
        density, _ = np.histogram(cosines, bins=BINS, range=(-1, 1), density=True)
        return cls(density.tolist(), float(cosines.mean()), float(cosines.var()))


@dataclass(frozen=True)
class PairCosines:
    """Cosines of one embedding."""

    loss: str
    positive: Histogram
    negative: Histogram


def similarities(loss: str, embeddings: Embeddings, seed: int = 0) -> PairCosines:
    """Cosines of all sentences with their clips, and of random sentences with other clips."""
    items, texts = embeddings.pair()
    a, b = normalize(items.rows.double(), dim=1), normalize(texts.rows.double(), dim=1)
    positive = (a[texts.clip_of] * b).sum(dim=1).numpy()
    rng = np.random.default_rng(seed)
    sentences = torch.from_numpy(rng.integers(len(b), size=NEGATIVES))
    clips = torch.from_numpy(rng.integers(len(a), size=NEGATIVES))
    other = clips != texts.clip_of[sentences]
    others = torch.cat(
        [
            (a[c] * b[s]).sum(dim=1)
            for c, s in zip(clips[other].split(20_000), sentences[other].split(20_000), strict=True)  # type: ignore[no-untyped-call]
        ]
    ).numpy()
    return PairCosines(loss, Histogram.of(positive), Histogram.of(others))


def similarity_sentence(compared: Sequence[PairCosines]) -> str:
    """Which loss has the lowest variance on positives, and which the highest mean on negatives."""
    lowest = min(compared, key=lambda each: each.positive.variance)
    highest = max(compared, key=lambda each: each.negative.mean)
    parts = [
        f"{each.loss}: positives {each.positive.mean:.2f} (variance {each.positive.variance:.3f}), "
        f"negatives {each.negative.mean:.2f} (variance {each.negative.variance:.3f})"
        for each in compared
    ]
    joined = "and" if lowest is highest else f"and {highest.loss}"
    return (
        f"{lowest.loss} has the lowest variance on positive pairs {joined} the highest mean on negative pairs. "
        + "; ".join(parts)
        + "."
    )


MAX_GRAPH_SAMPLES = 400  # samples in the graph
LINKED = 0.01  # share of all pairs that are linked
EXAMPLES, NEAREST = 6, 3


@dataclass(frozen=True)
class ConnectivityGraph:
    """Samples of one modality with their links."""

    places: npt.NDArray[np.float64]  # (samples, 2)
    links: list[tuple[int, int]]  # pairs of sample numbers
    degrees: list[int]  # links of each sample
    connectivity: list[float]  # C of each sample, over the whole split
    influential: list[bool]  # whether it is pruned from the negatives
    keys: list[str]  # clip keys
    texts: list[str]  # a sentence of each
    threshold: float  # cosine above which two samples are linked
    share: float  # share of the whole split that is influential


@dataclass(frozen=True)
class Influential:
    """An influential sample and its nearest texts in the input space."""

    key: str
    text: str
    connectivity: float
    nearest: list[tuple[str, str, float]]  # key, text, cosine


def connectivity_graph(
    inputs: Embeddings, threshold: float | None, rule: str, min_keep: float = 0.25
) -> ConnectivityGraph:
    """The graph of the second modality (one sentence of each clip); the other arguments are CrossCLR's for pruning."""
    first, sentences, keys = _first_sentences(inputs)
    rows = normalize(sentences.rows[first], dim=1)
    scores = connectivity(rows)
    mask, _ = influential(scores, threshold, rule, min_keep)
    sampled = torch.arange(0, len(first), max(1, -(-len(first) // MAX_GRAPH_SAMPLES)))
    shown = rows[sampled]
    cosines = shown @ shown.T
    upper = torch.triu_indices(len(shown), len(shown), offset=1)
    values = cosines[upper[0], upper[1]]
    cut = float(torch.quantile(values.double(), 1 - LINKED))
    linked = upper[:, values > cut]
    degrees = torch.bincount(linked.flatten(), minlength=len(shown))
    return ConnectivityGraph(
        places=plane(shown),
        links=[(int(x), int(y)) for x, y in linked.T],
        degrees=degrees.tolist(),
        connectivity=scores[sampled].tolist(),
        influential=mask[sampled].tolist(),
        keys=[keys[int(i)] for i in sampled],
        texts=[sentences.texts[first[int(i)]] if sentences.texts else "" for i in sampled],
        threshold=cut,
        share=float(mask.double().mean()),
    )


def influential_samples(inputs: Embeddings) -> list[Influential]:
    """The samples with the highest connectivity and their nearest texts; no text is shown twice."""
    first, sentences, keys = _first_sentences(inputs)
    rows = normalize(sentences.rows[first], dim=1)
    scores = connectivity(rows)
    examples: list[Influential] = []
    shown_texts: set[str] = set()
    for row in scores.argsort(descending=True).tolist():
        text = sentences.texts[first[row]]
        if text.casefold() in shown_texts:
            continue
        near = rows @ rows[row]
        nearest: list[tuple[str, str, float]] = []
        shown_texts.add(text.casefold())
        for other in near.argsort(descending=True).tolist():
            words = sentences.texts[first[other]]
            if words.casefold() in shown_texts:
                continue
            shown_texts.add(words.casefold())
            nearest.append((keys[other], words, float(near[other])))
            if len(nearest) == NEAREST:
                break
        examples.append(Influential(keys[row], text, float(scores[row]), nearest))
        if len(examples) == EXAMPLES:
            break
    return examples


def graph_sentence(graph: ConnectivityGraph) -> str:
    """How many links influential samples have, and how many samples are influential."""
    marked = [d for d, is_influential in zip(graph.degrees, graph.influential, strict=True) if is_influential]
    others = [d for d, is_influential in zip(graph.degrees, graph.influential, strict=True) if not is_influential]
    if not marked:
        return "With these settings no sample is influential, so nothing is pruned."
    return (
        f"{100 * graph.share:.1f}% of the training samples are influential and are not used as negatives. Those shown "
        f"have {np.mean(marked):.1f} links on average, the others {np.mean(others) if others else 0:.1f}. Two samples "
        f"are linked if the cosine of their inputs is above {graph.threshold:.2f}, which holds for 1% of all pairs."
    )


def _first_sentences(inputs: Embeddings) -> tuple[list[int], Vectors, list[str]]:
    """The number of the first sentence of each clip, all sentences, and the key of each of these clips."""
    clips, sentences = inputs.pair()
    first = sorted(first_sentences(sentences).items())
    return [number for _, number in first], sentences, [inputs.clip_keys[clips.clip_of[clip]] for clip, _ in first]
