"""Embeddings of a whole split, batch by batch."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from crossclr.features.batch import Side
from crossclr.features.batching.read_ahead import read_ahead
from crossclr.features.ragged import Ragged
from crossclr.features.sample import Rows, Sample, clip_keys
from crossclr.features.source import Source
from crossclr.models.embeddings import Embeddings
from crossclr.models.two_branch import TwoBranch

Progress = Callable[[int, int], None]


def embed_source(
    model: TwoBranch,
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
                for name, embedded in encode_samples(model, samples, place).items():
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
    # Joined outside of inference mode, so that the result can take part in later gradients.
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


def encode_samples(model: TwoBranch, samples: Sequence[Sample], device: torch.device) -> dict[str, Tensor]:
    """Embeddings of some samples under the names of `TwoBranch.encode`."""

    def side(parts: list[Sequence[Rows]], whole: list[Rows | None]) -> tuple[Side, Tensor]:
        context = [rows for rows in whole if rows is not None] if model.two_level else []
        if context and len(context) != len(whole):
            raise ValueError("some samples of the batch have whole-video rows and others do not; give all or none")
        return (
            Side(_joined(parts), Ragged.from_list(context) if context else None).to(device),
            torch.tensor([len(rows) for rows in parts]),
        )

    a = side([sample.clips for sample in samples], [sample.video for sample in samples])
    b = side([sample.sentences for sample in samples], [sample.paragraph for sample in samples])
    return model.encode_a(*a) | model.encode_b(*b)


def _joined(parts: Sequence[Sequence[Rows]]) -> Ragged:
    return Ragged.from_list([rows for rows_of_sample in parts for rows in rows_of_sample])
