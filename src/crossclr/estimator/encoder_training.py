"""Trains the encoders of `JointEmbedding`, and reads what it is given."""

import copy
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from crossclr.features import Batch
from crossclr.features.ragged import Ragged
from crossclr.features.sources.arrays.python_samples import Column, PythonSamples, read_column
from crossclr.models.space import TrainedEncoder
from crossclr.training import FitConfig, Interrupted, JointTraining, MemoryRecorder, fit, make_fabric
from crossclr.training.checkpoint import random_state as generator_states
from crossclr.training.checkpoint import set_random_state


class EncoderTraining:
    """Trains encoders on some of the samples; without settings, nothing is trained.

    A module as ``loss`` replaces the loss of the settings. Samples of one concept are never negatives of each other.
    """

    def __init__(
        self,
        loss: Any,
        settings: FitConfig | None,
        device: str,
        columns: Mapping[str, Column],
        concepts: Tensor | None,
    ) -> None:
        self.loss, self.settings, self.device = loss, settings, device
        self.columns, self.concepts = columns, concepts
        self.history: list[dict[str, Any]] = []

    def __call__(self, places: Tensor, number: int) -> tuple[nn.Module, Any]:
        """Train on the samples at some places; returns the encoder, and a function that encodes samples by place."""
        several = torch.stack([torch.from_numpy(column.present)[places] for column in self.columns.values()]).sum(0) > 1
        source = PythonSamples(self.columns, places[several].tolist())
        if self.settings is None:
            raise RuntimeError("the closed form trains nothing")
        config = self.settings.model_copy(update={"seed": (self.settings.seed + number) % 2**31})
        before = generator_states()  # training seeds the global generators, which belong to the caller
        try:
            own = copy.deepcopy(self.loss) if isinstance(self.loss, nn.Module) else None
            training = _LabelledTraining(config, source, make_fabric(self.device), self.concepts, own)
            memory = MemoryRecorder()
            fit(training, memory)
        except Interrupted:
            raise KeyboardInterrupt from None
        finally:
            set_random_state(before)
        training.model.load_state_dict(memory.best)
        self.history = [{key: value for key, value in record.items() if key != "kind"} for record in memory.epochs]
        encoder = TrainedEncoder(training.model.cpu())

        def encode(name: str, where: Tensor) -> Tensor:
            rows = [self.columns[name].rows[place] for place in where.tolist()]
            return encoder.clip_vectors(name, Ragged.from_list(rows))

        return encoder, encode


class _LabelledTraining(JointTraining):
    """Training whose batches have the user's concepts as ids."""

    def __init__(
        self, config: FitConfig, source: PythonSamples, fabric: Any, concepts: Tensor | None, loss: nn.Module | None
    ) -> None:
        super().__init__(config, source, fabric, loss)
        self.concepts = concepts

    def batches(self, epoch: int, start: int = 0) -> Generator[Batch, None, None]:
        """The batches of an epoch."""
        for batch in super().batches(epoch, start):
            if self.concepts is None:
                yield batch
            else:
                ids = self.concepts[[int(key) for key in batch.keys]]
                yield replace(batch, ids=ids, video_ids=ids)


def read_columns(X: Any, y: Any) -> dict[str, Column]:
    """The modalities of what was passed to `JointEmbedding.fit`."""
    if isinstance(X, Mapping):
        if y is not None:
            raise ValueError("pass one mapping of modalities, or two arrays, not both")
        given = {str(name): values for name, values in X.items()}
    elif y is None:
        raise ValueError("a joint embedding needs at least two modalities; pass two arrays or a mapping of arrays")
    else:
        given = {"a": X, "b": y}
    if len(given) < 2:
        raise ValueError(f"a joint embedding needs at least two modalities, got {', '.join(given) or 'none'}")
    columns = {name: read_column(values, name) for name, values in given.items()}
    counts = {name: len(column.rows) for name, column in columns.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ValueError(f"all modalities need the same number of samples, row i is sample i; got {listed}")
    owned = np.sum([column.present for column in columns.values()], axis=0)  # (samples,) modalities of each
    if not owned.all():
        raise ValueError(f"sample {int(owned.argmin())} has no modality; drop it")
    if (paired := int((owned > 1).sum())) < 2:
        raise ValueError(f"at least 2 samples with two modalities are needed, got {paired}")
    for name, column in columns.items():
        if not (column.present & (owned > 1)).any():
            raise ValueError(f"no sample has {name} and another modality; add some, or omit {name}")
    return columns


def read_labels(labels: Sequence[Any] | None, count: int, name: str) -> Tensor | None:
    """(samples,) equal labels as equal numbers.

    Example:
        >>> read_labels(["x", "y", "x"], 3, "concepts")
        tensor([0, 1, 0])
    """
    if labels is None:
        return None
    if len(labels) != count:
        raise ValueError(f"there are {count} samples but {len(labels)} {name}")
    return torch.from_numpy(np.unique(np.asarray(labels), return_inverse=True)[1].ravel().astype(np.int64))
