"""Linear views of the inputs in closed form: one in which pairs correlate, one in which shared words do.

The first is CCA. The second is the same where not only a clip and its own sentence go together, but each sentence and
each clip, by the share of words that the sentence has in common with the clip's captions: what `Relevance` tells.
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
from crossclr.models.closed_form.cca import Moments, fit_cca

PAIRS, WORDS = "pairs", "words"
WEIGHTINGS = {PAIRS: 1.0, WORDS: 0.5}  # power of a direction's correlation with which it counts; see `CCA.project_a`
SENTENCES = 5  # sentences that are compared for each clip, where there are more clips than are wanted
SPREAD = 2000  # samples of each modality from which the deviation of cosines is told


@dataclass(frozen=True)
class Candidate:
    """Views that might be used: their names, the vote of each, and what they do."""

    names: list[str]
    vote: float
    views: Views


class LinearViews:
    """The views of a training split, from which candidates are put together.

    Args:
        config: how they are fitted.
        inputs: the training samples' pooled rows, as `pool_source` gives them.
        embeddings: the same samples by the encoders alone.

    Raises:
        ValueError: there are fewer than two pairs, or a modality never varies.
    """

    def __init__(self, config: ViewsConfig, inputs: Embeddings, embeddings: Embeddings) -> None:
        self.config = config
        rows_a, rows_b = (functional.normalize(rows.double(), dim=1) for rows in (inputs.clip_a, inputs.clip_b))
        moments = Moments(rows_a.shape[1], rows_b.shape[1])
        moments.add(rows_a[inputs.clip_of], rows_b)
        strengths = (config.regularisation,)
        self.ccas = {PAIRS: fit_cca(moments, strengths)[0]}
        if inputs.texts:
            centred = rows_a - moments.mean_a, rows_b - moments.mean_b
            self.ccas[WORDS] = fit_cca(moments, strengths, _shared_words(inputs, *centred, config.most))[0]
        self.deviations = {"": _deviation(embeddings.clip_a, embeddings.clip_b)}
        for name, cca in self.ccas.items():
            how = config.dim, WEIGHTINGS[name]
            self.deviations[name] = _deviation(cca.project_a(rows_a, *how), cca.project_b(rows_b, *how))

    def candidates(self) -> Iterator[Candidate]:
        """What may be used, from the fewest views on."""
        names = list(self.ccas)
        for count in range(1, len(names) + 1):
            for vote in self.config.votes:
                yield Candidate(names[:count], vote, self.build(names[:count], vote))

    def build(self, names: list[str], vote: float) -> Views:
        """Some views, each of which counts ``vote`` where the encoder counts 1, cosines measured by their deviation."""
        votes = [1 / self.deviations[""], *(vote / self.deviations[name] for name in names)]
        pairs = self.ccas[PAIRS]  # means are those of all views
        bases = [self.ccas[name].bases(self.config.dim, WEIGHTINGS[name]) for name in names]
        return Views(
            pairs.mean_a.float(),
            torch.cat([basis for basis, _ in bases], dim=1).float(),
            pairs.mean_b.float(),
            torch.cat([basis for _, basis in bases], dim=1).float(),
            torch.tensor([basis.shape[1] for basis, _ in bases]),
            torch.tensor(votes, dtype=torch.float64) / sum(votes),
        )


def _shared_words(inputs: Embeddings, rows_a: Tensor, rows_b: Tensor, most: int) -> Tensor:
    """(dim_a, dim_b) sum over clips and sentences of their rows' product, weighted by the words that they share.

    Args:
        inputs: texts and clips of the sentences.
        rows_a: (clips, dim_a) around their mean.
        rows_b: (sentences, dim_b) around their mean.
        most: clips that are compared.
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
    """Of the cosines between all clips and all sentences; of many, some spread evenly."""
    a, b = (functional.normalize(rows[evenly_spaced(len(rows), SPREAD)].double(), dim=1) for rows in (rows_a, rows_b))
    return max(float((a @ b.T).std()), 1e-6)
