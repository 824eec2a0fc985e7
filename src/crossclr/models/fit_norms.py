"""Fits the standard norms of a model: mean and deviation of each channel over the training samples."""

import torch

from crossclr.features.source import Source
from crossclr.models.embed_split import encode_samples
from crossclr.models.joint_model import JointModel
from crossclr.models.layers.norm import StandardNorm
from crossclr.models.subsample import evenly_spaced

SAMPLES = 1000  # training samples to read, evenly spaced
BATCH = 64


def fit_standard_norms(model: JointModel, source: Source, split: str) -> None:
    """Fit every `StandardNorm` of a model on training samples; a model without one reads nothing."""
    norms = [module for module in model.modules() if isinstance(module, StandardNorm)]
    if not norms:
        return
    keys = source.keys(split)
    places = evenly_spaced(len(keys), SAMPLES).tolist()
    was_training = model.training
    model.eval()
    for norm in norms:
        norm.observe()
    with torch.no_grad():
        for start in range(0, len(places), BATCH):
            samples = [source.read(keys[place]) for place in places[start : start + BATCH]]
            encode_samples(model, samples, torch.device("cpu"))
    for norm in norms:
        norm.fit()
    model.train(was_training)
