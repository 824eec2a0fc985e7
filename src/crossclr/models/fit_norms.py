"""What a model takes from the training samples before its first step: the mean and deviation of their channels."""

from __future__ import annotations

import torch

from crossclr.features.source import Source
from crossclr.models.adjustments.subsample import evenly_spaced
from crossclr.models.embed_split import encode_samples
from crossclr.models.layers.standard_norm import StandardNorm
from crossclr.models.two_branch import TwoBranch

SAMPLES = 1000  # training samples that are looked at, evenly spread
BATCH = 64


def fit_standard_norms(model: TwoBranch, source: Source, split: str) -> None:
    """Set every `StandardNorm` of a model from training samples; without one, nothing is read.

    Args:
        model: the model, on the CPU.
        source: where samples are read, without random draws.
        split: the training split.
    """
    norms = [module for module in model.modules() if isinstance(module, StandardNorm)]
    if not norms:
        return
    keys = source.keys(split)
    places = evenly_spaced(len(keys), SAMPLES).tolist()
    was_training = model.training
    model.eval()
    for norm in norms:
        norm.watch()
    with torch.no_grad():
        for start in range(0, len(places), BATCH):
            samples = [source.read(keys[place]) for place in places[start : start + BATCH]]
            encode_samples(model, samples, torch.device("cpu"))
    for norm in norms:
        norm.settle()
    model.train(was_training)
