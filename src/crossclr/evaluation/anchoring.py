"""Anchors of a finished run: fitted on its training split, kept unless validation speaks against them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from crossclr.evaluation.metrics import evaluate_embeddings
from crossclr.features import Source
from crossclr.models import Anchors, Embeddings, TwoBranch, embed_source
from crossclr.training import Run
from crossclr.training.config import FitConfig


def fit_anchors(run: Run, source: Source, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """Fit the anchors that the run's config asks for, and put them beside its best weights if they are kept.

    Args:
        run: a run whose training is finished.
        source: its data, as it was trained on.
        device: where to compute.

    Returns:
        as `choose_anchors`.
    """
    if run.config.anchors is None:
        return None  # spares loading the model
    size = run.config.validation.batch_size
    model = run.load_model("best", anchored=False)
    found = choose_anchors(model, run.config, lambda split: embed_source(model, source, split, size, device))
    if model.anchors is not None:
        run.write_anchors(model.anchors)
    return found


def choose_anchors(model: TwoBranch, config: FitConfig, embed: Callable[[str], Embeddings]) -> dict[str, Any] | None:
    """Give a model the anchors that a config asks for, unless sentences then find clips of the validation split worse.

    What counts is the metric of ``validation.select_by`` where sentences look for clips: all that anchors change.
    Without a validation split there is nothing that could speak against them, and they are kept.

    Args:
        model: a trained model without anchors.
        config: how it was trained.
        embed: embeddings of a split by that model.

    Returns:
        ``kept``, and the validation score ``without`` and ``with_anchors``; None where the config has no anchors.
    """
    if config.anchors is None:
        return None
    anchors = Anchors.of(config.anchors, embed(config.splits.train))
    found: dict[str, Any] = {"kept": True, "without": None, "with_anchors": None}
    if config.splits.validate_ is not None:
        metric = config.validation.select_by.rpartition("/")[2]
        for name in ("without", "with_anchors"):
            found[name] = evaluate_embeddings(embed(config.splits.validate_), progress=False)["clip/b->a"][metric]
            model.anchors = anchors
        found["kept"] = found["with_anchors"] >= found["without"]
    model.anchors = anchors if found["kept"] else None
    return found
