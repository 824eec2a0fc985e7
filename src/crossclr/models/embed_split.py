"""Embedding a whole data set, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from crossclr.features.batch import Side
from crossclr.features.batching.read_ahead import read_ahead
from crossclr.features.keys import clip_keys
from crossclr.features.ragged import Ragged
from crossclr.features.sample import Rows, Sample
from crossclr.features.source import Source
from crossclr.models.adjustments.anchors import Anchors
from crossclr.models.adjustments.hub_bias import Hubs
from crossclr.models.embeddings import Embeddings
from crossclr.models.two_branch import TwoBranch

Progress = Callable[[int, int], None]


def _side(parts: Sequence[Rows], whole: Sequence[Rows | None], two_level: bool, device: torch.device) -> Side:
    context = [rows for rows in whole if rows is not None]
    if two_level and context and len(context) != len(whole):
        raise ValueError("some samples of the batch have whole-video rows and some have none; give all of them or none")
    clips = Ragged.from_list(parts)
    return Side(clips, Ragged.from_list(context) if two_level and context else None).to(device)


def embed_source(
    model: TwoBranch,
    source: Source,
    split: str,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Embeddings:
    """Embeddings of all samples of a split, in the order of the source.

    The data set is streamed: beside the result, two batches are in memory. The model runs in evaluation mode on
    ``device`` and stands as before afterwards (mode and device).

    Args:
        model: the model.
        source: where samples are read, without random draws.
        split: which samples.
        batch_size: samples (videos) for each step; it does not change the embeddings.
        device: where to compute.
        progress: called after each step with the samples done and the samples in all.

    Raises:
        ValueError: the split is unknown or empty, or the data does not fit the model.
    """
    found = _through(model, source, split, batch_size, device, encode_samples, progress)
    return as_searched(found, model.anchors, model.hubs)


def pool_source(
    model: TwoBranch, source: Source, split: str, batch_size: int = 64, device: torch.device | str = "cpu"
) -> Embeddings:
    """The inputs of all clips and sentences of a split as one row each, as `TwoBranch.pooled` gives them.

    Args:
        model: which knows how rows are pooled.
        source: where samples are read.
        split: which samples.
        batch_size: samples for each step.
        device: where to compute.
    """
    return _through(model, source, split, batch_size, device, pool_samples)


def _through(
    model: TwoBranch,
    source: Source,
    split: str,
    batch_size: int,
    device: torch.device | str,
    encode: Callable[[TwoBranch, Sequence[Sample], torch.device], dict[str, Tensor]],
    progress: Progress | None = None,
) -> Embeddings:
    """What ``encode`` makes of all samples of a split."""
    keys = source.keys(split)
    if not keys:
        raise ValueError(f"split {split!r} has no samples to embed")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")

    def read(start: int) -> list[Sample]:
        return [source.read(key) for key in keys[start : start + batch_size]]

    was_training, home, place = model.training, model.device, torch.device(device)
    columns: dict[str, list[Tensor]] = {}
    clip_of: list[int] = []
    names: list[str] = []
    counts: list[int] = []
    texts: list[str] = []
    groups: list[str] = []
    try:
        model.eval().to(place)
        with torch.inference_mode():
            for samples in read_ahead(read, range(0, len(keys), batch_size), workers=1, pending=2):
                for name, embedded in encode(model, samples, place).items():
                    columns.setdefault(name, []).append(embedded.to("cpu", torch.float32))
                for sample in samples:
                    clip_of.extend(len(names) + index for index in sample.clip_of)
                    names.extend(clip_keys(sample.key, len(sample.clips)))
                    counts.append(len(sample.clips))
                    texts.extend(sample.texts)
                    groups.append(sample.group)
                if progress is not None:
                    progress(len(counts), len(keys))
    finally:
        model.train(was_training).to(home)
    # Cloned outside of inference mode, so that the result may take part in later gradients.
    joined = {name: torch.cat(columns.pop(name)) for name in list(columns)}
    return Embeddings(
        clip_a=joined["clip_emb"],
        clip_b=joined["sent_emb"],
        clip_of=torch.tensor(clip_of, dtype=torch.int64),
        clip_keys=tuple(names),
        clip_counts=torch.tensor(counts, dtype=torch.int64),
        video_keys=tuple(keys),
        texts=tuple(texts),
        groups=tuple(groups) if any(groups) else (),
        video_a=joined.get("vid_emb"),
        video_b=joined.get("par_emb"),
        context_a=joined.get("vid_context"),
        context_b=joined.get("par_context"),
        modalities=source.modalities,
    )


def as_searched(embeddings: Embeddings, anchors: Anchors | None, hubs: Mapping[str, Hubs]) -> Embeddings:
    """Embeddings of the encoders alone, with what was fitted for search after training."""
    found = replace(embeddings, anchored_a=None if anchors is None else anchors(embeddings.clip_a))
    return replace(
        found,
        hub_a=hubs["a"](found.gallery_a) if "a" in hubs else None,
        hub_b=hubs["b"](found.clip_b) if "b" in hubs else None,
    )


def encode_samples(model: TwoBranch, samples: Sequence[Sample], device: torch.device) -> dict[str, Tensor]:
    """Embeddings of some samples by name, as `TwoBranch.encode_a` and `encode_b` give them."""
    clips = [rows for sample in samples for rows in sample.clips]
    sentences = [rows for sample in samples for rows in sample.sentences]
    side_a = _side(clips, [sample.video for sample in samples], model.two_level, device)
    side_b = _side(sentences, [sample.paragraph for sample in samples], model.two_level, device)
    count_a = torch.tensor([len(sample.clips) for sample in samples])
    count_b = torch.tensor([len(sample.sentences) for sample in samples])
    return model.encode_a(side_a, count_a) | model.encode_b(side_b, count_b)


def pool_samples(model: TwoBranch, samples: Sequence[Sample], device: torch.device) -> dict[str, Tensor]:
    """The inputs of some samples as one row each, under the names of embeddings."""
    clips = Ragged.from_list([rows for sample in samples for rows in sample.clips])
    sentences = Ragged.from_list([rows for sample in samples for rows in sample.sentences])
    return {
        "clip_emb": model.pooled("a", clips.to(device)),
        "sent_emb": model.pooled("b", sentences.to(device)),
    }
