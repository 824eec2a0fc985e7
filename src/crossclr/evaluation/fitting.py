"""Fitted search: what a finished run gets for what is searched, from its training split and as validation decides.

Two things help, each on other data: anchors, which move clips, and a correction of hubs, which adds to scores. They are
fitted on the training split; validation says which of them are used, and how strong the correction is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crossclr.evaluation.metrics import sentences_of
from crossclr.evaluation.ranks import TIE, retrieval_ranks
from crossclr.evaluation.semantics import Semantics
from crossclr.features import Source
from crossclr.models import Anchors, Embeddings, Hubs, TwoBranch, as_searched, embed_source
from crossclr.training import Run
from crossclr.training.config import FitConfig

Embed = Callable[[str], Embeddings]


@dataclass(frozen=True)
class _Candidate:
    """What might be fitted for one direction."""

    anchors: Anchors | None = None
    hubs: Hubs | None = None


def fit_search(run: Run, source: Source, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """Fit what the run's config asks for, and put what is kept beside its best weights.

    Args:
        run: a run whose training is finished.
        source: its data, as it was trained on.
        device: where to compute.

    Returns:
        as `choose_search`.
    """
    if run.config.anchors is None and run.config.hubs is None:
        return None  # spares loading the model
    size = run.config.validation.batch_size
    model = run.load_model("best", fitted=False)
    found = choose_search(model, run.config, lambda split: embed_source(model, source, split, size, device))
    run.write_fitted(model)
    return found


def choose_search(model: TwoBranch, config: FitConfig, embed: Embed) -> dict[str, Any] | None:
    """Give a model the anchors and the correction of hubs that a config asks for, as far as validation speaks for them.

    Each direction is judged alone, by the mean of R@1, R@10 and, where the data has texts, nDCG and shared-caption R@1.
    What makes nDCG worse is out: strict recall shall not be bought with meaning. Hubs are corrected only where that
    gains more than its standard error, since on a small split such gains are luck and hubs are often right. Of equal
    candidates the plainest is taken. Without a validation split anchors are kept, and hubs are left alone.

    Args:
        model: a trained model with nothing fitted.
        config: how it was trained.
        embed: embeddings of a split by the encoders alone.

    Returns:
        for ``clip/b->a`` and ``clip/a->b``: whether ``anchors`` are kept, the weight of ``hubs`` (None: not
        corrected), and the mean of the validation figures ``without`` and ``with_them``; None where the config asks for
        nothing.
    """
    if config.anchors is None and config.hubs is None:
        return None
    candidates = _candidates(config, embed(config.splits.train))
    if config.splits.validate_ is None:
        chosen = {"clip/b->a": _Candidate(candidates["clip/b->a"][-1].anchors), "clip/a->b": _Candidate()}
        scores: dict[str, tuple[float, float]] = {}
    else:
        judge = _Judge(embed(config.splits.validate_))
        decided = {direction: judge.choose(direction, found) for direction, found in candidates.items()}
        chosen = {direction: found[0] for direction, found in decided.items()}
        scores = {direction: found[1:] for direction, found in decided.items()}
    model.anchors = chosen["clip/b->a"].anchors
    kept = {"a": chosen["clip/b->a"].hubs, "b": chosen["clip/a->b"].hubs}
    model.hubs = {side: hubs for side, hubs in kept.items() if hubs is not None}
    return {
        direction: {
            "anchors": one.anchors is not None,
            "hubs": None if one.hubs is None else one.hubs.weight,
            "without": scores[direction][1] if scores else None,
            "with_them": scores[direction][0] if scores else None,
        }
        for direction, one in chosen.items()
    }


def any_kept(found: Mapping[str, Any] | None) -> bool:
    """Whether anything of what was fitted is used.

    Example:
        >>> any_kept({"clip/b->a": {"anchors": False, "hubs": 0.5}}), any_kept(None)
        (True, False)
    """
    return any(one["anchors"] or one["hubs"] is not None for one in (found or {}).values())


def _candidates(config: FitConfig, training: Embeddings) -> dict[str, list[_Candidate]]:
    """What may be used, from the plainest on."""
    moved = [None] if config.anchors is None else [None, Anchors.of(config.anchors, training)]
    corrected: dict[str, list[Hubs | None]] = {"a": [None], "b": [None]}
    if config.hubs is not None:
        for side, queries in (("a", training.clip_b), ("b", training.clip_a)):
            corrected[side] += [Hubs.of(config.hubs, queries, weight) for weight in config.hubs.weights]
    return {
        "clip/b->a": [_Candidate(anchors, hubs) for hubs in corrected["a"] for anchors in moved],
        "clip/a->b": [_Candidate(None, hubs) for hubs in corrected["b"]],
    }


class _Judge:
    """Compares candidates on one split."""

    def __init__(self, plain: Embeddings) -> None:
        self.plain = plain
        self.asked, self.sentences = sentences_of(plain.clip_of, len(plain.clip_a))
        clips = len(plain.clip_a)
        self.semantics = Semantics.of(plain.texts, plain.clip_of, clips) if plain.texts else None

    def choose(self, direction: str, candidates: Sequence[_Candidate]) -> tuple[_Candidate, float, float]:
        """The candidate to use, its score and that of the first one."""
        found = [self._figures(direction, one) for one in candidates]
        scores = [torch.stack(list(one.values())).nanmean(0) for one in found]  # (queries,) each
        meaning = [float(one["nDCG"].nanmean()) if "nDCG" in one else 0.0 for one in found]
        allowed = [place for place, value in enumerate(meaning) if value >= meaning[0]]
        best: dict[bool, int] = {}  # whether hubs are corrected -> place
        for place in allowed:
            kind = candidates[place].hubs is not None
            if kind not in best or scores[place].mean() > scores[best[kind]].mean():
                best[kind] = place
        chosen = best[False]
        if True in best:
            gain = scores[best[True]] - scores[chosen]
            if float(gain.mean()) > standard_error(gain, self._clips(direction)) + TIE:
                chosen = best[True]
        return candidates[chosen], float(scores[chosen].mean()), float(scores[0].mean())

    def _clips(self, direction: str) -> Tensor:
        """(queries,) the clip that each query is of."""
        return self.plain.clip_of if direction == "clip/b->a" else self.asked

    def _figures(self, direction: str, candidate: _Candidate) -> dict[str, Tensor]:
        """(queries,) in percent, by figure."""
        there = direction == "clip/b->a"
        hubs = {} if candidate.hubs is None else {"a" if there else "b": candidate.hubs}
        embeddings = as_searched(self.plain, candidate.anchors, hubs)
        queries, gallery = embeddings.b_to_a() if there else embeddings.a_to_b()
        queries = queries if there else queries[self.asked]
        targets = self.plain.clip_of if there else self.sentences
        ranks = retrieval_ranks(queries, gallery, targets, progress=False)
        figures = {"R@1": ranks <= 1, "R@10": ranks <= 10}
        if self.semantics is not None:
            gain, shared = self.semantics.of_queries(direction, queries, gallery)
            figures |= {"sR@1": shared <= 1, "nDCG": gain}
        return {name: 100 * values.double() for name, values in figures.items()}


def standard_error(values: Tensor, clips: Tensor) -> float:
    """Of the mean over queries, where those of one clip count as one observation.

    Args:
        values: (queries,).
        clips: (queries,) the clip of each.

    Example:
        >>> round(standard_error(torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1])), 4)
        0.5
    """
    _, place = torch.unique(clips, return_inverse=True)
    sums = torch.zeros(int(place.max()) + 1, dtype=values.dtype).index_add_(0, place, values - values.mean())
    count = len(sums)
    if count < 2:
        return math.inf
    return float(sums.square().sum().sqrt() * math.sqrt(count / (count - 1)) / len(values))
