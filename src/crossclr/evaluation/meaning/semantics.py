"""Meaning-aware metrics: nDCG, recall in which shared captions are correct, neighbours kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from crossclr.evaluation.meaning.ndcg import ndcg
from crossclr.evaluation.meaning.neighbourhoods import NEIGHBOURS, neighbours_kept
from crossclr.evaluation.meaning.relevance import Relevance
from crossclr.evaluation.meaning.shared_captions import SharedCaptions, shared_ranks
from crossclr.evaluation.retrieval.metrics import rank_metrics, targets_between
from crossclr.models.directions import Direction, directions_of
from crossclr.models.embeddings import Embeddings, Vectors  # noqa: F401 (Vectors: the example below)

SEMANTIC = ("nDCG", "sR@1", "sR@5", "sR@10")
KEPT = f"kept@{NEIGHBOURS}"


class Semantics:
    """What the captions of a split mean; independent of a model, so one object serves many runs.

    Args:
        text: the modality whose texts are the captions.
        texts: every sentence.
        clip_of: (sentences,) the clip of each sentence.
        clips: number of clips.
    """

    def __init__(self, text: str, texts: Sequence[str], clip_of: Tensor, clips: int) -> None:
        self.text, self.clip_of = text, clip_of
        self.words = Relevance.of_captions(texts, clip_of.tolist(), clips)
        self.shared = SharedCaptions(texts, clip_of.tolist(), clips)
        self._relevance: dict[str, Relevance] = {}

    @classmethod
    def of(cls, embeddings: Embeddings) -> Semantics | None:
        """From the texts of a split; None if it has none."""
        text = embeddings.text_name
        if text is None:
            return None
        vectors = embeddings[text]
        return cls(text, vectors.texts, vectors.clip_of, len(embeddings.clip_keys))

    def scores(self, embeddings: Embeddings) -> dict[str, dict[str, float]]:
        """``nDCG`` and ``sR@1 sR@5 sR@10`` in percent, for the directions at clip level from and to the texts."""
        if not torch.equal(embeddings[self.text].clip_of, self.clip_of):
            raise ValueError("these embeddings are of other samples than the captions")
        found = {}
        for key in directions_of(embeddings.names):
            direction = Direction.parse(key)
            if self.text in (direction.query, direction.searched):
                gain, ranks = self.of_queries(key, embeddings)
                if len(ranks):
                    found[key] = {"nDCG": 100 * float(gain.nanmean()), **_shared(ranks)}
        return found

    def of_queries(self, key: str, embeddings: Embeddings) -> tuple[Tensor, Tensor]:
        """(queries,) nDCG from 0 to 1, and the rank of the first item that shares a caption.

        Args:
            key: the direction; its queries are those that have a target.
            embeddings: of the same samples.
        """
        direction = Direction.parse(key)
        query, searched = embeddings[direction.query], embeddings[direction.searched]
        asked, _ = targets_between(query.clip_of, searched.clip_of)
        clips = query.clip_of[asked]
        if key not in self._relevance:
            if direction.query == self.text:
                pair = self.words.queries[asked.numpy()], self.words.gallery[searched.clip_of.numpy()]
            else:
                pair = self.words.gallery[clips.numpy()], self.words.queries
            self._relevance[key] = Relevance(*pair)
        queries, gallery = query.rows[asked], searched.gallery
        ranks = shared_ranks(queries, gallery, clips, searched.clip_of, self.shared)
        return ndcg(queries, gallery, self._relevance[key]), ranks


def semantic_scores(embeddings: Embeddings) -> dict[str, dict[str, float]]:
    """The meaning-aware metrics of one embedding; empty if the data has no texts.

    Example:
        >>> rows, order = torch.eye(3), torch.arange(3)
        >>> vectors = {"image": Vectors(rows, order),
        ...            "text": Vectors(rows[[1, 0, 2]], order, texts=("a dog", "A dog.", "a cat"))}
        >>> found = Embeddings(vectors, ("x", "y", "z"), torch.ones(3, dtype=torch.int64), ("x", "y", "z"))
        >>> semantic_scores(found)["clip/text->image"]["sR@1"]  # the two dogs are swapped, which is no error
        100.0
    """
    meaning = Semantics.of(embeddings)
    return {} if meaning is None else meaning.scores(embeddings)


def kept_neighbours(pooled: Embeddings, embeddings: Embeddings) -> dict[str, float]:
    """Percent of input-space neighbours that the joint space keeps within each modality, by its name.

    Args:
        pooled: the mean input row of each clip and sentence, as `pooled_split` returns them.
        embeddings: of the same samples.
    """
    names = pooled.names
    if pooled.clip_keys != embeddings.clip_keys or any(
        not torch.equal(pooled[name].clip_of, embeddings[name].clip_of) for name in names
    ):
        raise ValueError("the input features and the embeddings are not of the same samples")
    return {name: neighbours_kept(pooled[name].rows, embeddings[name].rows) for name in names}


def _shared(ranks: Tensor) -> dict[str, float]:
    found = rank_metrics(ranks)
    return {f"s{name}": found[name] for name in ("R@1", "R@5", "R@10")}
