"""Samples joined into one batch, without padding."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from crossclr.features.batch import Batch, Inputs, spread
from crossclr.features.errors import DataError
from crossclr.features.ragged import Ragged
from crossclr.features.sample import Content, Rows, Sample, clip_keys


def collate(samples: Sequence[Sample], dims: Mapping[str, int] | None = None) -> Batch:
    """Samples as one batch.

    Args:
        samples: samples with at most one sequence for each clip and modality, in the order of the clips (as training
            reads them).
        dims: channels of each modality, in the order of the data; by default of those that the samples have.

    Raises:
        DataError: a clip has several sequences of a modality or none at all, a sequence is empty, dims differ, or a
            value is not finite.

    Example:
        >>> one = Sample("v1", {"video": Content([np.ones((2, 3), np.float32)]),
        ...                     "text": Content([np.ones((4, 5), np.float32)])})
        >>> batch = collate([one, one])
        >>> batch.inputs["video"].clips.lengths.tolist(), batch.pooled["text"].shape, batch.present["text"].tolist()
        ([2, 2], torch.Size([2, 5]), [True, True])
    """
    if not samples:
        raise ValueError("a batch needs at least one sample")
    for sample in samples:
        check_sample(sample, dims)
    if dims is None:
        found = [item for sample in samples for item in sample.modalities.items()]
        dims = {name: content.clips[0].shape[-1] for name, content in reversed(found)}
        dims = {name: dims[name] for name, _ in found}
    wholes = [content.whole is None for sample in samples for content in sample.modalities.values()]
    if len(set(wholes)) > 1:
        raise DataError("a batch cannot mix samples with and without rows of whole videos")
    keys = [sample.key for sample in samples]
    names = [name for sample in samples for name in clip_keys(sample.key, sample.clip_count)]
    inputs, present, pooled, pooled_context = {}, {}, {}, {}
    for modality, dim in dims.items():
        own = [(sample.key, sample.modalities[modality]) for sample in samples if modality in sample.modalities]
        clips = _ragged([(key, content.clips) for key, content in own], dim)
        context = None if wholes[0] else _ragged([(key, _whole(content)) for key, content in own], dim)
        inputs[modality] = Inputs(clips, context)
        present[modality] = _presence(samples, modality)
        pooled[modality] = spread(_pooled(clips, names, present[modality]), present[modality])
        if context is not None:
            videos = torch.tensor([modality in sample.modalities for sample in samples])
            pooled_context[modality] = spread(_pooled(context, keys, videos), videos)
    return Batch(
        inputs=inputs,
        present=present,
        pooled=pooled,
        clip_counts=torch.tensor([sample.clip_count for sample in samples], dtype=torch.int64),
        ids=torch.tensor([number for sample in samples for number in sample.clip_ids], dtype=torch.int64),
        video_ids=torch.tensor([sample.video_id for sample in samples], dtype=torch.int64),
        keys=tuple(keys),
        pooled_context=pooled_context,
    )


def check_sample(sample: Sample, dims: Mapping[str, int] | None) -> None:
    """Check that a sample can be part of a batch."""
    check_clips(sample)
    for name, content in sample.modalities.items():
        if dims is not None and name not in dims:
            raise DataError(f"sample {sample.key!r} has the modality {name!r}, but the data has {', '.join(dims)}")
        if not content.one_each:
            raise DataError(
                f"sample {sample.key!r} has {len(content.clips)} sequences of {name} for {len(set(content.clip_of))} "
                "clips; a batch takes one for each clip: read the sample with a generator, which picks one"
            )


def check_clips(sample: Sample) -> None:
    """Check that every clip of a sample has a modality."""
    if not sample.modalities:
        raise DataError(f"sample {sample.key!r} has no modality; drop it")
    if lonely := set(range(sample.clip_count)).difference(*(one.clip_of for one in sample.modalities.values())):
        raise DataError(f"clip {min(lonely)} of sample {sample.key!r} has no modality; drop it")


def _whole(content: Content) -> list[Rows]:
    return [] if content.whole is None else [content.whole]


def _presence(samples: Sequence[Sample], modality: str) -> Tensor:
    """(clips,) which clips have a modality."""
    mask = []
    for sample in samples:
        clips = set(sample.modalities[modality].clip_of) if modality in sample.modalities else ()
        mask += [clip in clips for clip in range(sample.clip_count)]
    return torch.tensor(mask)


def _ragged(parts: Sequence[tuple[str, Sequence[Rows]]], dim: int) -> Ragged:
    sequences = [rows for _, rows_of_sample in parts for rows in rows_of_sample]
    lengths = torch.tensor([len(rows) for rows in sequences], dtype=torch.int64)
    if not sequences:
        return Ragged(torch.zeros(0, dim), lengths)
    try:
        return Ragged(torch.from_numpy(np.concatenate(sequences, dtype=np.float32)), lengths)
    except ValueError as error:
        dim = sequences[0].shape[-1]
        for key, rows_of_sample in parts:
            for number, rows in enumerate(rows_of_sample):
                if rows.ndim != 2 or not len(rows) or rows.shape[1] != dim:
                    raise DataError(
                        f"sample {key!r}, sequence {number}: shape {rows.shape}, but at least one row of {dim} "
                        "channels is needed"
                    ) from error
        raise DataError(f"the sequences of {parts[0][0]!r} to {parts[-1][0]!r} cannot be joined ({error})") from error


def _pooled(sequences: Ragged, names: Sequence[str], present: Tensor) -> Tensor:
    pooled = sequences.mean()  # (sequences, dim)
    bad = torch.nonzero(~torch.isfinite(pooled.sum(1))).ravel()
    if len(bad):
        name = names[int(present.nonzero()[bad[0]])]
        raise DataError(f"sample {name!r} has NaN or infinite values; extract it again or drop it")
    return pooled
