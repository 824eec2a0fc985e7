"""Whether neighbours in the input space stay neighbours in the joint space: the paper's first claim.

Recall in which all clips that share a caption with the query's clip are correct.

Meaning-aware metrics: nDCG, recall in which shared captions are correct, neighbours kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from crossclr.evaluation.metrics import rank_metrics, targets_between
from crossclr.evaluation.ranks import Matrix, retrieval_ranks
from crossclr.evaluation.relevance import Relevance, ndcg
from crossclr.models.directions import Direction, directions_of
from crossclr.models.embeddings import Embeddings, Vectors  # noqa: F401 (Vectors: the example below)

NEIGHBOURS = 10
ANCHORS = 2_000  # samples that are examined; all others still count as neighbours
ROWS = 256


def neighbours_kept(inputs: Matrix, outputs: Matrix, k: int = NEIGHBOURS, anchors: int = ANCHORS) -> float:
    """Percent of each sample's k nearest neighbours in the input that are among its k nearest in the joint space.

    Both are measured within one modality, by cosine. Samples with equal input rows (the same caption twice) count as
    one: they are neighbours in every space. Large sets are subsampled evenly.

    Args:
        inputs: (samples, D) input features, one row each.
        outputs: (samples, D') embeddings of the same samples.
        k: how many neighbours; at most all others.
        anchors: maximum number of samples to examine.

    Returns:
        percent; of a random embedding it is 100 · k / (samples - 1).

    Example:
        >>> rows = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
        >>> neighbours_kept(rows, 3 * rows)
        100.0
    """
    before, after = (torch.as_tensor(np.asarray(rows), dtype=torch.float32) for rows in (inputs, outputs))
    if len(before) != len(after):
        raise ValueError(f"there are {len(before)} input rows but {len(after)} embeddings; give the same samples")
    _, first = np.unique(before.numpy(), axis=0, return_index=True)
    kept = torch.from_numpy(np.sort(first))
    before, after = before[kept], after[kept]
    k = min(k, len(kept) - 1)
    if k < 1:
        raise ValueError(f"{len(kept)} different samples have no neighbours; at least two are needed")
    chosen = torch.arange(0, len(kept), max(1, -(-len(kept) // anchors)))
    with torch.inference_mode():
        spaces = [torch.nn.functional.normalize(rows, dim=1) for rows in (before, after)]
        total = 0
        for rows in torch.split(chosen, ROWS):
            old, new = (_nearest(space, rows, k) for space in spaces)  # (rows, k)
            total += int((old.unsqueeze(2) == new.unsqueeze(1)).sum())
    return 100 * total / (k * len(chosen))


def _nearest(space: Tensor, rows: Tensor, k: int) -> Tensor:
    scores = space[rows] @ space.T
    scores[torch.arange(len(rows)), rows] = -torch.inf  # no sample is its own neighbour
    return scores.topk(k, dim=1).indices


class SharedCaptions:
    """Which clips have a caption in common, word for word (ignoring case, spaces and a final full stop).

    Args:
        texts: every sentence.
        clip_of: the clip of each sentence.
        clips: how many clips there are.

    Example:
        >>> shared = SharedCaptions(["A dog runs.", "a cat", "a dog runs", "a cow"], [0, 0, 1, 2], 3)
        >>> shared.pairs(torch.tensor([0, 2]), torch.arange(3)).toarray().tolist()
        [[True, True, False], [False, False, True]]
    """

    def __init__(self, texts: Sequence[str], clip_of: Sequence[int], clips: int) -> None:
        numbers: dict[str, int] = {}
        columns = [numbers.setdefault(_plain(text), len(numbers)) for text in texts]
        pairs = (np.ones(len(columns)), (np.asarray(clip_of, dtype=np.int64), np.asarray(columns, dtype=np.int64)))
        self.captions = sparse.csr_array(pairs, shape=(clips, max(1, len(numbers))))  # (clips, captions)

    def pairs(self, clips: Tensor, others: Tensor) -> sparse.csr_array:
        """(clips, others) whether two clips share a caption; every clip does with itself."""
        share = sparse.csr_array((self.captions @ self.captions.T + sparse.eye_array(self.captions.shape[0])) > 0)
        return share[clips.numpy()][:, others.numpy()]


def shared_ranks(
    queries: Matrix,
    gallery: Matrix,
    clip_of_query: Tensor,
    clip_of_item: Tensor,
    shared: SharedCaptions,
    experts: int = 1,
) -> Tensor:
    """Rank of the best correct item of each query; items of every clip that shares a caption are correct.

    Args:
        queries: (queries, D), need not be normalised.
        gallery: (items, D).
        clip_of_query: (queries,) the clip of each query.
        clip_of_item: (items,) the clip of each gallery row.
        shared: which clips have a caption in common.
        experts: number of experts in a row; see `crossclr.models.similarity`.

    Returns:
        (queries,) float64 ranks, 1 is best; see `retrieval_ranks`.
    """
    pairs = shared.pairs(clip_of_query, clip_of_item)
    return retrieval_ranks(queries, gallery, pairs, experts=experts, progress=False)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(" .")


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
        experts = embeddings.expert_count
        ranks = shared_ranks(queries, gallery, clips, searched.clip_of, self.shared, experts)
        return ndcg(queries, gallery, self._relevance[key], experts), ranks


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
        pooled: the mean input row of each clip and sentence, as `pooled_rows` returns them.
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
