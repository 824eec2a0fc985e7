"""Meaning-aware metrics: nDCG, recall in which shared captions are correct, neighbours kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crossclr.evaluation.meaning.ndcg import mean_percent, ndcg
from crossclr.evaluation.meaning.neighbourhoods import NEIGHBOURS, neighbours_kept
from crossclr.evaluation.meaning.relevance import Relevance
from crossclr.evaluation.meaning.shared_captions import SharedCaptions, shared_ranks
from crossclr.evaluation.retrieval.metrics import rank_metrics, sentences_of
from crossclr.models.directions import direction_keys
from crossclr.models.embeddings import Embeddings

SEMANTIC = ("nDCG", "sR@1", "sR@5", "sR@10")
KEPT = f"kept@{NEIGHBOURS}"


@dataclass(frozen=True)
class Semantics:
    """What the captions of a split mean; independent of a model, so one object serves many runs.

    Args:
        relevance: of the clips to the sentences.
        turned: of the sentences to the clips that have any.
        shared: which clips have a caption in common.
        clip_of: (sentences,) the clip of each sentence.
    """

    relevance: Relevance
    turned: Relevance
    shared: SharedCaptions
    clip_of: Tensor

    @classmethod
    def of(cls, texts: Sequence[str], clip_of: Tensor, clips: int) -> Semantics:
        """From the sentences of a split and the clip of each."""
        owners = clip_of.tolist()
        relevance = Relevance.of_captions(texts, owners, clips)
        asked, _ = sentences_of(clip_of, clips)
        turned = Relevance(relevance.gallery[asked.numpy()], relevance.queries)
        return cls(relevance, turned, SharedCaptions(texts, owners, clips), clip_of)

    def scores(self, embeddings: Embeddings) -> dict[str, dict[str, float]]:
        """``nDCG`` and ``sR@1 sR@5 sR@10`` in percent, by direction at clip level."""
        clip_of, clips = embeddings.clip_of, len(embeddings.clip_a)
        if not torch.equal(clip_of, self.clip_of):
            raise ValueError("these embeddings are of other samples than the captions")
        asked, _ = sentences_of(clip_of, clips)
        a, b = embeddings.clip_a, embeddings.clip_b
        pairs = {"a": (b, a), "b": (a[asked], b)}
        found = {side: self.of_queries(side, *pair) for side, pair in pairs.items()}
        keys = direction_keys(embeddings.modalities)
        return {keys[side]: {"nDCG": mean_percent(gain), **_shared(ranks)} for side, (gain, ranks) in found.items()}

    def of_queries(self, side: str, queries: Tensor, gallery: Tensor) -> tuple[Tensor, Tensor]:
        """(queries,) nDCG from 0 to 1, and the rank of the first item that shares a caption.

        Args:
            side: the side that is searched: ``a``, the clips, or ``b``, the sentences.
            queries: of the other side; if sentences are searched, the clips that have any.
            gallery: all items of the searched side.
        """
        if side == "a":
            relevance, asking, found = self.relevance, self.clip_of, torch.arange(len(gallery))
        else:
            relevance, asking, found = self.turned, torch.unique(self.clip_of), self.clip_of
        return ndcg(queries, gallery, relevance), shared_ranks(queries, gallery, asking, found, self.shared)


def semantic_scores(embeddings: Embeddings) -> dict[str, dict[str, float]]:
    """The meaning-aware metrics of one embedding; empty if the data has no texts.

    Example:
        >>> rows = torch.eye(3)
        >>> keys = ("x", "y", "z")
        >>> found = Embeddings(rows, rows[[1, 0, 2]], torch.arange(3), keys, torch.ones(3, dtype=torch.int64), keys,
        ...                    texts=("a dog", "A dog.", "a cat"), modalities=("image", "text"))
        >>> semantic_scores(found)["clip/text->image"]["sR@1"]  # the two dogs are swapped, which is no error
        100.0
    """
    if not embeddings.texts:
        return {}
    return Semantics.of(embeddings.texts, embeddings.clip_of, len(embeddings.clip_a)).scores(embeddings)


def kept_neighbours(pooled: Embeddings, embeddings: Embeddings) -> dict[str, float]:
    """Percent of input-space neighbours that the joint space keeps within each modality, by its name.

    Args:
        pooled: the mean input row of each clip and sentence, as `pooled_split` returns them.
        embeddings: of the same samples.
    """
    if pooled.clip_keys != embeddings.clip_keys or len(pooled.clip_b) != len(embeddings.clip_b):
        raise ValueError("the input features and the embeddings are not of the same samples")
    a, b = embeddings.modalities
    return {
        a: neighbours_kept(pooled.clip_a, embeddings.clip_a),
        b: neighbours_kept(pooled.clip_b, embeddings.clip_b),
    }


def _shared(ranks: Tensor) -> dict[str, float]:
    found = rank_metrics(ranks)
    return {f"s{name}": found[name] for name in ("R@1", "R@5", "R@10")}
