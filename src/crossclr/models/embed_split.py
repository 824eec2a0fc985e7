"""Embeddings of a whole split, batch by batch."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from crossclr.features.batch import Inputs
from crossclr.features.batching.read_ahead import read_ahead
from crossclr.features.ragged import Ragged
from crossclr.features.sample import Content, Sample, clip_keys
from crossclr.features.source import Source
from crossclr.models.embeddings import Embeddings, Vectors
from crossclr.models.joint_model import JointModel
from crossclr.models.search_space.space import SearchSpace

Progress = Callable[[int, int], None]


def embed_source(
    model: JointModel | SearchSpace,
    source: Source,
    split: str,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Embeddings:
    """Embeddings of all samples of a split, in the order of the source.

    The data is streamed: apart from the result, two batches are in memory. The model runs in evaluation mode on
    ``device``; afterwards its mode and device are restored.

    Args:
        model: the model.
        source: the data, read without randomness.
        split: which samples.
        batch_size: samples (videos) per step; it does not change the embeddings.
        device: where to compute.
        progress: called after each step with the number of samples done and in total.

    Raises:
        ValueError: the split is unknown or empty, or the data does not fit the model.
    """
    keys = source.keys(split)
    if not keys:
        raise ValueError(f"split {split!r} has no samples to embed")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")

    def read(start: int) -> list[Sample]:
        return [source.read(key) for key in keys[start : start + batch_size]]

    was_training, home, place = model.training, model.device, torch.device(device)
    columns = EmbeddingColumns(model.modalities)
    try:
        model.eval().to(place)
        with torch.inference_mode():
            for samples in read_ahead(read, range(0, len(keys), batch_size), workers=1, pending=2):
                columns.add(samples, encode_samples(model, samples, place))
                if progress is not None:
                    progress(len(columns.counts), len(keys))
    finally:
        model.train(was_training).to(home)
    # Joined outside of inference mode, so that the result can take part in later gradients.
    return columns.joined()


def encode_samples(
    model: JointModel | SearchSpace, samples: Sequence[Sample], device: torch.device
) -> dict[str, Tensor]:
    """Embeddings of some samples under ``level/modality``, one row for each sequence that is there."""
    outputs = {}
    for name in model.modalities:
        found = [sample.modalities[name] for sample in samples if name in sample.modalities]
        if not found:
            continue
        context = [content.whole for content in found if content.whole is not None] if model.two_level else []
        if context and len(context) != len(found):
            raise ValueError("some samples of the batch have whole-video rows and others do not; give all or none")
        inputs = Inputs(_joined(found), Ragged.from_list(context) if context else None).to(device)
        counts = torch.tensor([len(content.clips) for content in found])
        for level, rows in model.encode_modality(name, inputs, counts).items():
            outputs[f"{level}/{name}"] = rows
    return outputs


class EmbeddingColumns:
    """Collects the vectors of samples, batch by batch."""

    def __init__(self, modalities: Iterable[str]) -> None:
        modalities = list(modalities)
        self.counts: list[int] = []
        self._names: list[str] = []
        self._keys: list[str] = []
        self._groups: list[str] = []
        self._concepts: list[int] = []
        self._any_concept = False
        self._clip_of: dict[str, list[int]] = {name: [] for name in modalities}
        self._video_of: dict[str, list[int]] = {name: [] for name in modalities}
        self._texts: dict[str, list[str]] = {name: [] for name in modalities}
        self._rows: dict[str, list[Tensor]] = {}

    def add(self, samples: Sequence[Sample], outputs: dict[str, Tensor]) -> None:
        """Some samples, and their vectors under ``level/modality``."""
        for name, rows in outputs.items():
            self._rows.setdefault(name, []).append(rows.to("cpu", torch.float32))
        for sample in samples:
            for name, content in sample.modalities.items():
                self._clip_of[name].extend(len(self._names) + clip for clip in content.clip_of)
                self._video_of[name].append(len(self.counts))
                self._texts[name].extend(content.texts)
            self._names.extend(clip_keys(sample.key, sample.clip_count))
            self.counts.append(sample.clip_count)
            self._keys.append(sample.key)
            self._groups.append(sample.group)
            self._concepts += sample.clip_ids
            self._any_concept |= bool(sample.concepts)

    def joined(self) -> Embeddings:
        """Everything that was added."""
        width = next((parts[0].shape[1] for key, parts in self._rows.items() if key.startswith("clip/")), 0)

        def rows(level: str, name: str) -> Tensor | None:
            parts = self._rows.get(f"{level}/{name}")
            return None if parts is None else torch.cat(parts)

        found = {}
        for name, clip_of in self._clip_of.items():
            clips, videos = rows("clip", name), rows("video", name)
            found[name] = Vectors(
                torch.zeros(0, width) if clips is None else clips,
                torch.tensor(clip_of, dtype=torch.int64),
                tuple(self._texts[name]),
                videos,
                None if videos is None else torch.tensor(self._video_of[name], dtype=torch.int64),
                rows("context", name),
                rows("items", name),
            )
        return Embeddings(
            found,
            clip_keys=tuple(self._names),
            clip_counts=torch.tensor(self.counts, dtype=torch.int64),
            video_keys=tuple(self._keys),
            groups=tuple(self._groups) if any(self._groups) else (),
            concepts=torch.tensor(self._concepts, dtype=torch.int64) if self._any_concept else None,
        )


def _joined(found: Sequence[Content]) -> Ragged:
    return Ragged.from_list([rows for content in found for rows in content.clips])
