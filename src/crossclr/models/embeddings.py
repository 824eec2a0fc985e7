"""Embeddings of a data set: the input of validation, export, evaluation, search and captioning.

Embeddings of a whole split, batch by batch.

Fits the standard norms of a model: mean and deviation of each channel over the training samples.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from crossclr.data.batch import Inputs, Ragged
from crossclr.data.dataset import Dataset
from crossclr.data.order import read_ahead
from crossclr.data.sample import Sample, clip_keys, stable_hash
from crossclr.data.samples import SampleColumns, ids_of
from crossclr.devices import usable_device
from crossclr.models.joint_model import JointModel
from crossclr.models.norm import StandardNorm
from crossclr.models.pair_moments import evenly_spaced
from crossclr.models.space import SearchSpace
from crossclr.progress_bar import Progress


@dataclass(frozen=True)
class Vectors:
    """Raw (not normalised) embeddings of one modality, on the CPU in float32.

    Args:
        rows: (rows, D) one row for each clip that has the modality; several if a clip has several sentences.
        clip_of: (rows,) int64, the clip of each row, as a place in `Embeddings.clip_keys`.
        texts: (rows) the sentences as text, or empty.
        videos: (videos that have the modality, Dv), or None for one-level data.
        video_of: (the same,) int64, the video of each, as a place in `Embeddings.video_keys`; None with ``videos``.
        context: (the same, D) the local encoder on whole videos, or None.
        items: (rows, D) the rows as search targets; None: the same as ``rows``, which are queries.
    """

    rows: Tensor
    clip_of: Tensor
    texts: tuple[str, ...] = ()
    videos: Tensor | None = None
    video_of: Tensor | None = None
    context: Tensor | None = None
    items: Tensor | None = None

    @property
    def gallery(self) -> Tensor:
        """(rows, D) the rows as search targets."""
        return self.rows if self.items is None else self.items

    def at(self, level: str, searched: bool = False) -> tuple[Tensor, Tensor] | None:
        """The rows of a level, as queries or search targets, and the clip or video of each; None without the level."""
        if level == "clip":
            return (self.gallery if searched else self.rows), self.clip_of
        return None if self.videos is None or self.video_of is None else (self.videos, self.video_of)


@dataclass(frozen=True)
class Embeddings:
    """The embeddings of all modalities of the same clips.

    Args:
        modalities: vectors by modality.
        clip_keys: (clips) a unique key per clip, see `crossclr.data.clip_keys`.
        clip_counts: (videos,) int64 number of clips of each video.
        video_keys: (videos) key of each video in its source.
        groups: (videos) a coarse label of each video, or empty.
        concepts: (clips) a number for each clip, equal for clips that show the same; None if each shows its own.
        experts: names of the experts whose weighted vectors lie side by side in a row; see `similarity`.
    """

    modalities: Mapping[str, Vectors]
    clip_keys: tuple[str, ...]
    clip_counts: Tensor
    video_keys: tuple[str, ...]
    groups: tuple[str, ...] = ()
    concepts: Tensor | None = None
    experts: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Dataset, rows: Mapping[str, Tensor], modalities: Iterable[str]) -> "Embeddings":
        """A vector for each sequence of some data.

        Args:
            data: the samples, whose sequences are known.
            rows: the vectors under ``level/modality``; levels are `clip`, `items`, `video` and `context`.
            modalities: their names, in order.
        """
        width = next((own.shape[1] for key, own in rows.items() if key.startswith("clip/")), 0)
        found = {}
        for name in modalities:
            clips, videos = data.clips[name], rows.get(f"video/{name}")
            found[name] = Vectors(
                rows.get(f"clip/{name}", torch.zeros(0, width)),
                torch.tensor(clips.item, dtype=torch.int64),
                () if clips.texts is None else tuple(clips.text(number) for number in range(len(clips))),
                videos,
                None if videos is None else torch.tensor(data.videos[name].item, dtype=torch.int64),
                rows.get(f"context/{name}"),
                rows.get(f"items/{name}"),
            )
        starts = np.arange(len(data) + 1) if data.clip_starts is None else data.clip_starts
        counts = torch.from_numpy(np.diff(starts))
        keys, groups, concepts = (
            [] if column is None else column.to_pylist() for column in map(data.column, ("key", "group", "concept"))
        )
        return cls(
            found,
            tuple(name for key, count in zip(keys, counts.tolist(), strict=True) for name in clip_keys(key, count)),
            counts,
            tuple(keys),
            tuple(group or "" for group in groups) if any(groups) else (),
            torch.from_numpy(ids_of(data)["clips"]) if any(concepts) else None,
        )

    def __getitem__(self, modality: str) -> Vectors:
        if modality not in self.modalities:
            raise ValueError(f"there is no modality {modality!r}; there are {', '.join(self.modalities)}")
        return self.modalities[modality]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the modalities, in the order of the data."""
        return tuple(self.modalities)

    @property
    def expert_count(self) -> int:
        """Number of vectors that lie side by side in a row."""
        return len(self.experts) or 1

    @property
    def text_name(self) -> str | None:
        """The first modality that has texts."""
        return next((name for name, vectors in self.modalities.items() if vectors.texts), None)

    @property
    def clip_ids(self) -> Tensor:
        """(clips,) a number for each clip, equal for clips that show the same."""
        if self.concepts is not None:
            return self.concepts
        return torch.tensor([stable_hash(key) for key in self.clip_keys], dtype=torch.int64)

    def pair(self) -> tuple[Vectors, Vectors]:
        """Clips and their sentences, for what compares two modalities.

        The first has one row for each clip, and the ``clip_of`` of the second counts these rows. Sentences of clips
        that the first modality lacks are omitted.

        Raises:
            ValueError: there are not two modalities, or clips have several rows in both.
        """
        if len(self.modalities) != 2:
            raise ValueError(f"this compares two modalities, but there are {len(self.names)}: {', '.join(self.names)}")
        first, second = self.modalities.values()
        for clips, sentences in ((first, second), (second, first)):
            if len(torch.unique(clips.clip_of)) == len(clips.clip_of):
                return clips, _renumbered(sentences, clips.clip_of, len(self.clip_keys))
        raise ValueError("clips have several rows in both modalities; one of them must have one row for each clip")

    def fused(self, modalities: Sequence[str], level: str = "clip", searched: bool = False) -> tuple[Tensor, Tensor]:
        """The normalised mean of the present unit vectors of some modalities, and the clip or video of each row.

        Example:
            >>> vectors = {"video": Vectors(torch.eye(2), torch.arange(2)),
            ...            "picture": Vectors(torch.tensor([[0.0, 5.0]]), torch.tensor([0]))}
            >>> found = Embeddings(vectors, ("x", "y"), torch.ones(2, dtype=torch.int64), ("x", "y"))
            >>> found.fused(["video", "picture"])[0].round(decimals=2)
            tensor([[0.7100, 0.7100],
                    [0.0000, 1.0000]])
        """
        parts = [part for name in modalities if (part := self[name].at(level, searched)) is not None]
        count = len(self.clip_keys) if level == "clip" else len(self.video_keys)
        total = torch.zeros(count, parts[0][0].shape[1])
        present = torch.zeros(count, dtype=torch.bool)
        for rows, place in parts:
            mean = torch.zeros_like(total).index_add_(0, place, normalize(rows, dim=1))
            total += normalize(mean, dim=1)  # several sentences of a clip count as one
            present[place] = True
        here = present.nonzero().flatten()
        return normalize(total[here], dim=1), here

    def only(self, modalities: Sequence[str]) -> "Embeddings":
        """The embeddings of some modalities."""
        return replace(self, modalities={name: self[name] for name in modalities})


def _renumbered(vectors: Vectors, clips: Tensor, count: int) -> Vectors:
    """Vectors whose ``clip_of`` counts places in ``clips``, without those of other clips."""
    if torch.equal(clips, torch.arange(count)):
        return vectors
    place = torch.full((count,), -1, dtype=torch.int64)
    place[clips] = torch.arange(len(clips))
    kept = (place[vectors.clip_of] >= 0).nonzero().flatten()
    texts = tuple(vectors.texts[row] for row in kept.tolist()) if vectors.texts else ()
    items = None if vectors.items is None else vectors.items[kept]
    clip_of = place[vectors.clip_of[kept]]
    return replace(vectors, rows=vectors.rows[kept], clip_of=clip_of, texts=texts, items=items)


def embed_data(
    model: JointModel | SearchSpace,
    data: Dataset,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Embeddings:
    """Embeddings of all samples of a data set, in its order.

    The data is streamed: apart from the result, two batches are in memory. The model runs in evaluation mode on
    ``device``; afterwards its mode and device are restored.

    Args:
        model: the model.
        data: the samples, read without randomness.
        batch_size: samples (videos) per step; it does not change the embeddings.
        device: where to compute.
        progress: called after each step with the number of samples done and in total.

    Raises:
        ValueError: there are no samples, or they do not fit the model.
    """
    if not len(data):
        raise ValueError(f"split {data.split!r} has no samples to embed")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")

    def read(start: int) -> list[Sample]:
        return [data[place] for place in range(start, min(start + batch_size, len(data)))]

    was_training, home, place = model.training, model.device, usable_device(device)
    columns = SampleColumns({**dict.fromkeys(model.modalities, 0), **data.dims}, keep=False)
    found: dict[str, list[Tensor]] = {}
    try:
        model.eval().to(place)
        with torch.inference_mode():
            for samples in read_ahead(read, range(0, len(data), batch_size), workers=1, pending=2):
                for sample in samples:
                    columns.add(sample)
                for key, rows in encode_samples(model, samples, place).items():
                    found.setdefault(key, []).append(rows.to("cpu", torch.float32))
                if progress is not None:
                    progress(len(columns.counts), len(data))
    finally:
        model.train(was_training).to(home)
    # Joined outside of inference mode, so that the result can take part in later gradients.
    joined = {key: torch.cat(parts) for key, parts in found.items()}
    return replace(Embeddings.of(columns.of(data), joined, model.modalities), experts=model.experts)


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
        clips = Ragged.from_list([rows for content in found for rows in content.clips])
        inputs = Inputs(clips, Ragged.from_list(context) if context else None).to(device)
        counts = torch.tensor([len(content.clips) for content in found])
        for level, rows in model.encode_modality(name, inputs, counts).items():
            outputs[f"{level}/{name}"] = rows
    return outputs


SAMPLES = 1000  # training samples to read, evenly spaced
BATCH = 64


def fit_standard_norms(model: JointModel, data: Dataset) -> None:
    """Fit every `StandardNorm` of a model on training samples; a model without one reads nothing."""
    norms = [module for module in model.modules() if isinstance(module, StandardNorm)]
    if not norms:
        return
    places = evenly_spaced(len(data), SAMPLES).tolist()
    was_training = model.training
    model.eval()
    for norm in norms:
        norm.observe()
    with torch.no_grad():
        for start in range(0, len(places), BATCH):
            samples = [data[place] for place in places[start : start + BATCH]]
            encode_samples(model, samples, torch.device("cpu"))
    for norm in norms:
        norm.fit()
    model.train(was_training)
