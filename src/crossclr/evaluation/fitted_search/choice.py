"""Fitted search: adjustments for search that are fitted after training; validation decides which are used.

There are three, and each helps on other data: linear views of the inputs next to the embeddings, anchors, which move
clips, and a correction of hubs, which changes scores. They are fitted on the training split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from crossclr.evaluation.fitted_search.linear_views import Candidate as ViewsCandidate
from crossclr.evaluation.fitted_search.linear_views import LinearViews
from crossclr.evaluation.fitted_search.query_scores import (
    MEANING,
    SIDES,
    Both,
    QueryScores,
    per_query,
    standard_error,
)
from crossclr.evaluation.retrieval.ranks import TIE
from crossclr.features import Source
from crossclr.models import Anchors, Embeddings, Hubs, JointModel, Views, as_searched, embed_source, pool_source
from crossclr.models.directions import direction_keys, direction_words
from crossclr.training import Run
from crossclr.training.config.run_config import FitConfig

Embed = Callable[[str], Embeddings]


@dataclass(frozen=True)
class _Candidate:
    """Adjustments that might be used for one direction."""

    anchors: Anchors | None = None
    hubs: Hubs | None = None


def fit_search(run: Run, source: Source, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """Fit what the run's config requests, and store what is kept with its best weights.

    Args:
        run: a run whose training is finished.
        source: its training data.
        device: where to compute.

    Returns:
        as `choose_search`.
    """
    if not run.config.fits_search:
        return None  # spares loading the model
    size = run.config.validation.batch_size
    model = run.load_model("best", fitted=False)
    found = choose_search(
        model,
        run.config,
        lambda split: embed_source(model, source, split, size, device),
        lambda split: pool_source(model, source, split, size, device),
    )
    run.write_fitted(model)
    return found


def choose_search(model: JointModel, config: FitConfig, embed: Embed, inputs: Embed) -> dict[str, Any] | None:
    """Add the views, anchors and hub correction that a config requests to a model, if validation supports them.

    Views are chosen first, because they change all embeddings. Views that lower any metric, averaged over both
    directions, by more than its standard error are discarded. Of the others, those with the highest nDCG are used, or
    with the highest recall if the data has no texts.

    Then each direction is decided alone, by the mean of R@1, R@10 and, if the data has texts, nDCG and shared-caption
    R@1. Candidates that lower nDCG are discarded. Hubs are corrected only if that gains more than one standard error
    over the best candidate without it, because on a small split such gains are often chance. Of equal candidates the
    simplest is used. Without a validation split anchors are used, and views and hub correction are not.

    Args:
        model: a trained model with nothing fitted.
        config: how it was trained.
        embed: embeddings of a split by the encoders alone.
        inputs: one pooled input row for each clip and sentence of a split, see `pool_source`.

    Returns:
        by direction at clip level: the names of the ``views`` and the ``vote`` of each (None: no views),
        whether ``anchors`` are used, the weight of ``hubs`` (None: not corrected), and the mean of the validation
        metrics ``without`` and ``with_them``. None if the config requests nothing.
    """
    if not config.fits_search:
        return None
    splits, inputs = config.splits, cache(inputs)
    training = embed(splits.train)
    if splits.validate_ is None:
        anchors = None if config.anchors is None else Anchors.of(config.anchors, training)
        chosen = {"a": _Candidate(anchors), "b": _Candidate()}
        views: ViewsCandidate | None = None
        scores: dict[str, list[float]] = {}
    else:
        validation = embed(splits.validate_)
        judge = QueryScores(validation)
        scores = {side: [_score(judge, side, validation)] for side in SIDES}
        views = _choose_views(config, judge, training, validation, inputs)
        if views is not None:
            model.views = views.views
            training = with_views(training, views.views, inputs(splits.train))
            validation = with_views(validation, views.views, inputs(splits.validate_))
        chosen = {}
        for side, candidates in _candidates(config, training).items():
            chosen[side], score = _choose(judge, side, validation, candidates)
            scores[side].append(score)
    model.anchors = chosen["a"].anchors
    model.hubs = {side: one.hubs for side, one in chosen.items() if one.hubs is not None}
    keys = direction_keys(training.modalities)
    return {
        keys[side]: {
            "views": [] if views is None else views.names,
            "vote": None if views is None else views.vote,
            "anchors": one.anchors is not None,
            "hubs": None if one.hubs is None else one.hubs.weight,
            "without": scores[side][0] if scores else None,
            "with_them": scores[side][1] if scores else None,
        }
        for side, one in chosen.items()
    }


def any_kept(found: Mapping[str, Any] | None) -> bool:
    """Whether any fitted adjustment is used.

    Example:
        >>> any_kept({"clip/text->video": {"views": [], "anchors": False, "hubs": 0.5}}), any_kept(None)
        (True, False)
    """
    return any(one.get("views") or one["anchors"] or one["hubs"] is not None for one in (found or {}).values())


def kept_words(found: Mapping[str, Any] | None) -> str:
    """The fitted adjustments that are used, in words; empty if there are none.

    Example:
        >>> nothing = {"views": [], "anchors": False, "hubs": None}
        >>> used = {**nothing, "views": ["pairs", "words"], "anchors": True}
        >>> kept_words({"clip/text->video": used, "clip/video->text": nothing})
        'fitted: text → video: views of pairs and words, anchors; video → text: nothing'
    """
    if not any_kept(found):
        return ""
    directions, words = [], direction_words(found or {})
    for direction, one in (found or {}).items():
        parts = [f"views of {' and '.join(one['views'])}"] if one.get("views") else []
        parts += ["anchors"] if one["anchors"] else []
        parts += [f"hubs by {one['hubs']:g}"] if one["hubs"] is not None else []
        directions.append(f"{words[direction]}: {', '.join(parts) or 'nothing'}")
    return f"fitted: {'; '.join(directions)}"


def with_views(embeddings: Embeddings, views: Views, inputs: Embeddings) -> Embeddings:
    """Combine embeddings of the encoders with views of the same samples' inputs."""
    return replace(
        embeddings,
        clip_a=views("a", embeddings.clip_a, inputs.clip_a),
        clip_b=views("b", embeddings.clip_b, inputs.clip_b),
    )


def _choose_views(
    config: FitConfig, judge: QueryScores, training: Embeddings, validation: Embeddings, inputs: Embed
) -> ViewsCandidate | None:
    """The views to use, or None."""
    if config.views is None or config.splits.validate_ is None:
        return None
    rows = inputs(config.splits.train)
    if any(bool((part == part[0]).all()) for part in (rows.clip_a, rows.clip_b)):
        return None  # there is nothing to correlate
    asked = inputs(config.splits.validate_)
    plain = judge.both(validation)
    best, chosen = _worth(plain), None
    for candidate in LinearViews(config.views, rows, training).candidates():
        found = judge.both(with_views(validation, candidate.views, asked))
        if _worth(found) > best + TIE and not judge.falls(found, plain):
            best, chosen = _worth(found), candidate
    return chosen


def _worth(figures: Both) -> float:
    """The criterion for views: nDCG, or the sum of recalls if the data has no texts."""
    return sum(
        float(values.nanmean())
        for found in figures.values()
        for name, values in found.items()
        if name == MEANING or MEANING not in found
    )


def _candidates(config: FitConfig, training: Embeddings) -> dict[str, list[_Candidate]]:
    """All candidates by the side that is searched, the simplest first."""
    moved = [None] if config.anchors is None else [None, Anchors.of(config.anchors, training)]
    corrected: dict[str, list[Hubs | None]] = {"a": [None], "b": [None]}
    if config.hubs is not None:
        for side, queries in (("a", training.clip_b), ("b", training.clip_a)):
            corrected[side] += [Hubs.of(config.hubs, queries, weight) for weight in config.hubs.weights]
    return {
        "a": [_Candidate(anchors, hubs) for hubs in corrected["a"] for anchors in moved],
        "b": [_Candidate(None, hubs) for hubs in corrected["b"]],
    }


def _choose(
    judge: QueryScores, side: str, embeddings: Embeddings, candidates: Sequence[_Candidate]
) -> tuple[_Candidate, float]:
    """The candidate to use, and its score."""
    found = []
    for one in candidates:
        hubs = {} if one.hubs is None else {side: one.hubs}
        found.append(judge.figures(side, as_searched(embeddings, one.anchors, hubs)))
    scores = [per_query(one) for one in found]
    meaning = [float(one[MEANING].nanmean()) if MEANING in one else 0.0 for one in found]
    means = [float(one.mean()) for one in scores]

    def best(corrected: bool, least: float) -> int | None:
        places = [place for place, one in enumerate(candidates) if (one.hubs is not None) == corrected]
        return max((place for place in places if meaning[place] >= least), key=means.__getitem__, default=None)

    chosen = best(False, meaning[0]) or 0
    rival = best(True, meaning[chosen])
    if rival is not None:
        gain = scores[rival] - scores[chosen]
        if float(gain.mean()) > standard_error(gain, judge.clips(side)) + TIE:
            chosen = rival
    return candidates[chosen], means[chosen]


def _score(judge: QueryScores, side: str, embeddings: Embeddings) -> float:
    return float(per_query(judge.figures(side, embeddings)).mean())
