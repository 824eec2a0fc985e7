"""Samples joined into one batch, without padding."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from crossclr.features.batch import Batch, Side
from crossclr.features.errors import DataError
from crossclr.features.ragged import Ragged
from crossclr.features.sample import Rows, Sample, clip_keys, stable_hash


def collate(samples: Sequence[Sample]) -> Batch:
    """Samples as one batch.

    Args:
        samples: samples with one sentence for each clip, in the order of the clips (as training reads them).

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
        if not sample.one_to_one:
            raise DataError(
                f"sample {sample.key!r} has {len(sample.sentences)} sentences for {len(sample.clips)} clips; a batch "
                "needs one per clip: read the sample with a generator, which picks one"
            )
    if len({whole is None for sample in samples for whole in (sample.video, sample.paragraph)}) > 1:
        raise DataError("a batch cannot mix samples with and without whole-video and whole-paragraph rows")
    keys = [sample.key for sample in samples]
    names = [name for sample in samples for name in clip_keys(sample.key, len(sample.clips))]
    clips = ([sample.clips for sample in samples], [sample.sentences for sample in samples])
    whole = ([sample.video for sample in samples], [sample.paragraph for sample in samples])
    sides, pooled, pooled_context = [], [], []
    for parts, wholes in zip(clips, whole, strict=True):
        sequences = _ragged(keys, parts)
        contexts = [[rows] for rows in wholes if rows is not None]
        context = _ragged(keys, contexts) if contexts else None
        sides.append(Side(sequences, context))
        pooled.append(_pooled(sequences, names))
        pooled_context.append(None if context is None else _pooled(context, keys))
    return Batch(
        a=sides[0],
        b=sides[1],
        pooled_a=pooled[0],
        pooled_b=pooled[1],
        clip_counts=torch.tensor([len(sample.clips) for sample in samples], dtype=torch.int64),
        ids=torch.tensor([stable_hash(name) for name in names], dtype=torch.int64),
        video_ids=torch.tensor([stable_hash(key) for key in keys], dtype=torch.int64),
        keys=tuple(keys),
        pooled_context_a=pooled_context[0],
        pooled_context_b=pooled_context[1],
    )


def _ragged(keys: Sequence[str], parts: Sequence[Sequence[Rows]]) -> Ragged:
    sequences = [rows for rows_of_sample in parts for rows in rows_of_sample]
    lengths = torch.tensor([len(rows) for rows in sequences], dtype=torch.int64)
    try:
        return Ragged(torch.from_numpy(np.concatenate(sequences, dtype=np.float32)), lengths)
    except ValueError as error:
        dim = sequences[0].shape[-1]
        for key, rows_of_sample in zip(keys, parts, strict=True):
            for number, rows in enumerate(rows_of_sample):
                if rows.ndim != 2 or not len(rows) or rows.shape[1] != dim:
                    raise DataError(
                        f"sample {key!r}, sequence {number}: shape {rows.shape}, but at least one row of {dim} "
                        "channels is needed"
                    ) from error
        raise DataError(f"the sequences of samples {keys[0]!r} to {keys[-1]!r} cannot be joined ({error})") from error


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
    if sample.one_to_one:
        return sample
    return sample.with_sentences([list(sample.clip_of).index(clip) for clip in range(len(sample.clips))])
