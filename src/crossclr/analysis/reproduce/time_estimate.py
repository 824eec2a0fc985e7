"""How long trainings will take, from a few measured steps."""

import time

from crossclr.analysis.studies.trainer import open_trainer
from crossclr.features import open_source
from crossclr.training import JointTraining, RunConfig, make_fabric
from crossclr.training.torch_settings import torch_settings, torch_threads

STEPS = 2  # measured, after one that warms up
VALIDATION = 1.15  # validation and checkpoints add about this factor


def estimated_seconds(config: RunConfig, in_memory: bool) -> float:
    """Estimated seconds of a training on this machine: a few steps are taken and thrown away.

    Args:
        config: the training.
        in_memory: it is one of several on one thread each, with the data in memory. Otherwise it has all threads, and
            reads its data from files.
    """
    source = open_trainer(config).source if in_memory else open_source(config.data)
    with torch_threads(1 if in_memory else None), torch_settings(config.training):
        training = JointTraining(config, source, make_fabric(config.training.accelerator, 1, "32-true"))
        stream = training.batches(0)
        training.step(next(stream))
        count, began = 0, time.monotonic()
        for batch, _ in zip(stream, range(STEPS), strict=False):
            training.step(batch)
            count += 1
        seconds = (time.monotonic() - began) / max(1, count)
    return seconds * training.batches_per_epoch * config.training.epochs * VALIDATION
