"""The connectivity graph: samples with similar inputs are linked, influential ones are marked."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import normalize

from crossclr.analysis.figures.maps import first_sentences, plane
from crossclr.features import connectivity
from crossclr.losses.memory.influence import influential
from crossclr.models import Embeddings, Vectors

MOST = 400  # samples in the graph
LINKED = 0.01  # share of all pairs that are linked
EXAMPLES, NEAREST = 6, 3


@dataclass(frozen=True)
class Graph:
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


def connectivity_graph(inputs: Embeddings, threshold: float | None, rule: str, min_keep: float = 0.25) -> Graph:
    """The graph of the second modality (one sentence of each clip); the other arguments are CrossCLR's for pruning."""
    first, sentences, keys = _first_sentences(inputs)
    rows = normalize(sentences.rows[first], dim=1)
    scores = connectivity(rows)
    mask, _ = influential(scores, threshold, rule, min_keep)
    chosen = torch.arange(0, len(first), max(1, -(-len(first) // MOST)))
    shown = rows[chosen]
    cosines = shown @ shown.T
    upper = torch.triu_indices(len(shown), len(shown), offset=1)
    values = cosines[upper[0], upper[1]]
    cut = float(torch.quantile(values.double(), 1 - LINKED))
    linked = upper[:, values > cut]
    degrees = torch.bincount(linked.flatten(), minlength=len(shown))
    return Graph(
        places=plane(shown),
        links=[(int(x), int(y)) for x, y in linked.T],
        degrees=degrees.tolist(),
        connectivity=scores[chosen].tolist(),
        influential=mask[chosen].tolist(),
        keys=[keys[int(i)] for i in chosen],
        texts=[sentences.texts[first[int(i)]] if sentences.texts else "" for i in chosen],
        threshold=cut,
        share=float(mask.double().mean()),
    )


def influential_samples(inputs: Embeddings) -> list[Influential]:
    """The samples with the highest connectivity and their nearest texts; no text is shown twice."""
    first, sentences, keys = _first_sentences(inputs)
    rows = normalize(sentences.rows[first], dim=1)
    scores = connectivity(rows)
    found: list[Influential] = []
    shown_texts: set[str] = set()
    for place in scores.argsort(descending=True).tolist():
        text = sentences.texts[first[place]]
        if text.casefold() in shown_texts:
            continue
        near = rows @ rows[place]
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
        found.append(Influential(keys[place], text, float(scores[place]), nearest))
        if len(found) == EXAMPLES:
            break
    return found


def sentence(graph: Graph) -> str:
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
