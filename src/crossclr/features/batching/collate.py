"""Samples joined to one batch, without padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from crossclr.features.batch import Batch, Side
from crossclr.features.errors import DataError
from crossclr.features.keys import clip_keys, stable_hash
from crossclr.features.ragged import Ragged
from crossclr.features.sample import Rows, Sample


def collate(samples: Sequence[Sample]) -> Batch:
    """Samples as one batch.

    Args:
        samples: samples with one sentence for each clip, in the clips' order (as training reads them).

    Raises:
        DataError: a clip has no or several sentences, a sequence is empty, dims differ, or a value is not finite.

    Example:
        >>> one = Sample("v1", [np.ones((2, 3), np.float32)], [np.ones((4, 5), np.float32)])
        >>> batch = collate([one, one])
        >>> batch.a.clips.lengths.tolist(), batch.pooled_b.shape, batch.ids.tolist() == [stable_hash("v1")] * 2
        ([2, 2], torch.Size([2, 5]), True)
    """
    if not samples:
        raise ValueError("a batch needs at least one sample")
    for sample in samples:
        if list(sample.clip_of) != list(range(len(sample.clips))):
            raise DataError(
                f"sample {sample.key!r} has {len(sample.sentences)} sentences for {len(sample.clips)} clips; a batch "
                "needs one for each: read it with a generator, which picks one"
            )
    two_level = samples[0].video is not None
    if any((sample.video is None) == two_level or (sample.paragraph is None) == two_level for sample in samples):
        raise DataError("a batch cannot mix samples with and without whole-video and whole-paragraph rows")
    a, b = (_ragged(samples, [sample.clips for sample in samples]), _ragged(samples, [s.sentences for s in samples]))
    video = paragraph = None
    if two_level:
        video = _ragged(samples, [[s.video] for s in samples if s.video is not None])
        paragraph = _ragged(samples, [[s.paragraph] for s in samples if s.paragraph is not None])
    counts = [len(sample.clips) for sample in samples]
    names = [name for sample, count in zip(samples, counts, strict=True) for name in clip_keys(sample.key, count)]
    return Batch(
        a=Side(a, video),
        b=Side(b, paragraph),
        pooled_a=_pooled(a, names),
        pooled_b=_pooled(b, names),
        clip_counts=torch.tensor(counts, dtype=torch.int64),
        ids=torch.tensor([stable_hash(name) for name in names], dtype=torch.int64),
        video_ids=torch.tensor([stable_hash(sample.key) for sample in samples], dtype=torch.int64),
        keys=tuple(sample.key for sample in samples),
        pooled_context_a=None if video is None else _pooled(video, [sample.key for sample in samples]),
        pooled_context_b=None if paragraph is None else _pooled(paragraph, [sample.key for sample in samples]),
    )


def _ragged(samples: Sequence[Sample], parts: Sequence[Sequence[Rows]]) -> Ragged:
    sequences = [rows for rows_of_sample in parts for rows in rows_of_sample]
    lengths = torch.tensor([len(rows) for rows in sequences], dtype=torch.int64)
    try:
        values = torch.from_numpy(np.concatenate(sequences, dtype=np.float32))
        return Ragged(values, lengths)
    except ValueError:
        pass
    dim = sequences[0].shape[-1]
    for sample, rows_of_sample in zip(samples, parts, strict=True):
        for number, rows in enumerate(rows_of_sample):
            if rows.ndim != 2 or not len(rows) or rows.shape[1] != dim:
                raise DataError(
                    f"sample {sample.key!r}, sequence {number}: shape {rows.shape}, but at least one row of {dim} "
                    "channels is needed"
                )
    raise DataError(f"the sequences of samples {samples[0].key!r} to {samples[-1].key!r} cannot be joined")


def _pooled(sequences: Ragged, names: Sequence[str]) -> Tensor:
    pooled = sequences.mean()  # (sequences, dim)
    bad = torch.nonzero(~torch.isfinite(pooled.sum(1))).ravel()
    if len(bad):
        raise DataError(f"sample {names[int(bad[0])]!r} has NaN or infinite values; extract it again or drop it")
    return pooled


def first_sentences(sample: Sample) -> Sample:
    """The sample with the first sentence of each clip only.

    Example:
        >>> rows = np.ones((1, 2), np.float32)
        >>> sample = Sample("v", [rows, rows], [rows, rows * 2, rows * 3], clip_of=(1, 0, 1), texts=("x", "y", "z"))
        >>> first_sentences(sample).texts
        ('y', 'x')
    """
    if list(sample.clip_of) == list(range(len(sample.clips))):
        return sample
    owners = list(sample.clip_of)
    chosen = [owners.index(clip) for clip in range(len(sample.clips))]
    return Sample(
        key=sample.key,
        clips=sample.clips,
        sentences=[sample.sentences[number] for number in chosen],
        video=sample.video,
        paragraph=sample.paragraph,
        texts=tuple(sample.texts[number] for number in chosen) if sample.texts else (),
        group=sample.group,
        extra=sample.extra,
    )
