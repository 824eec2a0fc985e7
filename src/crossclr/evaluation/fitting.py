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

from crossclr.evaluation.metrics import evaluate_embeddings
from crossclr.evaluation.semantics import Semantics
from crossclr.features import Source
from crossclr.models import Anchors, Embeddings, Hubs, TwoBranch, as_searched, embed_source
from crossclr.training import Run
from crossclr.training.config import FitConfig

JUDGED_BY = ("R@1", "R@10", "nDCG", "sR@1")  # meaning counts as much as strict recall, where there are texts
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
    What makes nDCG worse is out: strict recall shall not be bought with meaning, and nDCG is the steadiest of the four
    on a small split. Of equal candidates the plainest is taken. Without a validation split anchors are kept, and hubs
    are left alone: nothing tells how strongly to correct them.

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
        scores: dict[str, list[float]] = {}
    else:
        judge = _Judge(embed(config.splits.validate_))
        scores = {direction: judge.scores(direction, found) for direction, found in candidates.items()}
        chosen = {d: found[scores[d].index(max(scores[d]))] for d, found in candidates.items()}
    model.anchors = chosen["clip/b->a"].anchors
    kept = {"a": chosen["clip/b->a"].hubs, "b": chosen["clip/a->b"].hubs}
    model.hubs = {side: hubs for side, hubs in kept.items() if hubs is not None}
    return {
        direction: {
            "anchors": one.anchors is not None,
            "hubs": None if one.hubs is None else one.hubs.weight,
            "without": scores[direction][0] if scores else None,
            "with_them": max(scores[direction]) if scores else None,
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
    """Scores candidates on one split."""

    def __init__(self, plain: Embeddings) -> None:
        self.plain = plain
        clips = len(plain.clip_a)
        self.semantics = Semantics.of(plain.texts, plain.clip_of, clips) if plain.texts else None

    def scores(self, direction: str, candidates: Sequence[_Candidate]) -> list[float]:
        """The mean of each candidate's figures; minus infinity where nDCG is worse than that of the first."""
        figures = [self._figures(direction, one) for one in candidates]
        plain = figures[0].get("nDCG", 0.0)
        return [sum(found.values()) / len(found) if found.get("nDCG", 0.0) >= plain else -math.inf for found in figures]

    def _figures(self, direction: str, candidate: _Candidate) -> dict[str, float]:
        hubs = {} if candidate.hubs is None else {"a" if direction == "clip/b->a" else "b": candidate.hubs}
        embeddings = as_searched(self.plain, candidate.anchors, hubs)
        figures = evaluate_embeddings(embeddings, progress=False)[direction]
        if self.semantics is not None:
            figures |= self.semantics.scores(embeddings)[direction]
        return {name: figures[name] for name in JUDGED_BY if name in figures}
