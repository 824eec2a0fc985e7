"""Linear views of the inputs in closed form: one in which pairs correlate, one in which shared words do.

A view is a linear projection of the inputs of both modalities into a common space, used next to the embedding. The
first is CCA. In the second, every sentence belongs to every clip, weighted by the share of words that the sentence has
in common with the captions of the clip (see `Relevance`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from crossclr.evaluation.meaning.relevance import Relevance
from crossclr.models import Embeddings, Views, ViewsConfig
from crossclr.models.adjustments.subsample import evenly_spaced
from crossclr.models.closed_form import Moments, fit_cca

PAIRS, WORDS = "pairs", "words"
WEIGHTINGS = {PAIRS: 1.0, WORDS: 0.5}  # power of a direction's correlation; see `CCA.encode`
SENTENCES = 5  # sentences compared for each clip, if the clips are subsampled
SPREAD = 2000  # samples of each modality from which the deviation of cosines is estimated


@dataclass(frozen=True)
class Candidate:
    """Views that might be used: their names, the vote of each, and the fitted views."""

    names: list[str]
    vote: float
    views: Views


class LinearViews:
    """The views of a training split, from which candidates are combined.

    Args:
        config: how they are fitted.
        inputs: the training samples' pooled rows, as `pool_source` returns them.
        embeddings: the same samples embedded by the encoders alone.

    Raises:
        ValueError: there are fewer than two pairs, or a modality never varies.
    """

    def __init__(self, config: ViewsConfig, inputs: Embeddings, embeddings: Embeddings) -> None:
        self.config = config
        rows = {
            name: functional.normalize(found.double(), dim=1)
            for name, found in (("a", inputs.clip_a), ("b", inputs.clip_b))
        }
        moments = Moments({name: found.shape[1] for name, found in rows.items()})
        moments.add({"a": rows["a"][inputs.clip_of], "b": rows["b"]})
        strengths = (config.regularisation,)
        self.ccas = {PAIRS: fit_cca(moments, strengths)[0]}
        if inputs.texts:
            centred = {name: found - moments.mean(name) for name, found in rows.items()}
            words = _shared_words(inputs, centred["a"], centred["b"], config.most)
            self.ccas[WORDS] = fit_cca(moments, strengths, words)[0]
        self.deviations = {"": _deviation(embeddings.clip_a, embeddings.clip_b)}
        for name, cca in self.ccas.items():
            a, b = (cca.encode(side, rows[side], config.dim, WEIGHTINGS[name]) for side in ("a", "b"))
            self.deviations[name] = _deviation(a, b)

    def candidates(self) -> Iterator[Candidate]:
        """All combinations of views and votes, the fewest views first."""
        names = list(self.ccas)
        for count in range(1, len(names) + 1):
            for vote in self.config.votes:
                yield Candidate(names[:count], vote, self.build(names[:count], vote))

    def build(self, names: list[str], vote: float) -> Views:
        """Combine views; each counts ``vote`` where the encoder counts 1, in units of the deviation of its cosines."""
        votes = [1 / self.deviations[""], *(vote / self.deviations[name] for name in names)]
        means = self.ccas[PAIRS].means  # the same for all views
        bases = {
            side: [self.ccas[name].directions(side, self.config.dim, WEIGHTINGS[name]) for name in names]
            for side in ("a", "b")
        }
        return Views(
            means["a"].float(),
            torch.cat(bases["a"], dim=1).float(),
            means["b"].float(),
            torch.cat(bases["b"], dim=1).float(),
            torch.tensor([basis.shape[1] for basis in bases["a"]]),
            torch.tensor(votes, dtype=torch.float64) / sum(votes),
        )


def _shared_words(inputs: Embeddings, rows_a: Tensor, rows_b: Tensor, most: int) -> Tensor:
    """(dim_a, dim_b) sum over clips and sentences of the product of their rows, weighted by the words they share.

    Args:
        inputs: texts, and the clip of each sentence.
        rows_a: (clips, dim_a) centred.
        rows_b: (sentences, dim_b) centred.
        most: maximum number of clips; more are subsampled evenly.
    """
    clips = evenly_spaced(len(rows_a), most)
    sentences = torch.nonzero(torch.isin(inputs.clip_of, clips)).flatten()
    if len(clips) < len(rows_a):
        sentences = sentences[evenly_spaced(len(sentences), SENTENCES * most)]
    place = torch.full((len(rows_a),), -1)
    place[clips] = torch.arange(len(clips))
    texts = [inputs.texts[number] for number in sentences.tolist()]
    relevance = Relevance.of_captions(texts, place[inputs.clip_of[sentences]].tolist(), len(clips))
    found = torch.zeros(rows_a.shape[1], rows_b.shape[1], dtype=torch.float64)
    rows_a, rows_b = rows_a[clips], rows_b[sentences]
    for here in relevance.blocks():
        grades = torch.from_numpy(relevance.block(here.start, here.stop))  # (sentences, clips)
        found += (grades @ rows_a).T @ rows_b[here]
    return found


def _deviation(rows_a: Tensor, rows_b: Tensor) -> float:
    """Standard deviation of the cosines between clips and sentences, from an evenly spaced subsample."""
    a, b = (functional.normalize(rows[evenly_spaced(len(rows), SPREAD)].double(), dim=1) for rows in (rows_a, rows_b))
    return max(float((a @ b.T).std()), 1e-6)
