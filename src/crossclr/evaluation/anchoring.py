"""Anchors of a finished run: fitted on its training split, kept unless validation speaks against them."""

from __future__ import annotations

from typing import Any

import torch

from crossclr.evaluation.metrics import evaluate_embeddings, flat
from crossclr.features import Source
from crossclr.models import Anchors, TwoBranch, embed_source
from crossclr.training import Run


def fit_anchors(run: Run, source: Source, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """Fit the anchors that the run's config asks for, and put them beside its best weights if they are kept.

    What counts is the metric of ``validation.select_by`` where sentences look for clips: all that anchors change.
    Without a validation split there is nothing that could speak against them, and they are kept.

    Args:
        run: a run whose training is finished.
        source: its data, as it was trained on.
        device: where to compute.

    Returns:
        ``kept``, and the validation score ``without`` and ``with_anchors``; None where the config has no anchors.
    """
    config = run.config
    if config.anchors is None:
        return None
    model = run.load_model("best", anchored=False)
    training = embed_source(model, source, config.splits.train, config.validation.batch_size, device)
    anchors = Anchors.of(config.anchors, training)
    found: dict[str, Any] = {"kept": True, "without": None, "with_anchors": None}
    if config.splits.validate_ is not None:
        found["without"] = _validation_score(run, model, source, device)
        model.anchors = anchors
        found["with_anchors"] = _validation_score(run, model, source, device)
        found["kept"] = found["with_anchors"] >= found["without"]
    if found["kept"]:
        run.write_anchors(anchors)
    return found


def _validation_score(run: Run, model: TwoBranch, source: Source, device: torch.device | str) -> float:
    config = run.config
    embeddings = embed_source(model, source, str(config.splits.validate_), config.validation.batch_size, device)
    metric = config.validation.select_by.rpartition("/")[2]
    return flat(evaluate_embeddings(embeddings, progress=False))[f"clip/b->a/{metric}"]
