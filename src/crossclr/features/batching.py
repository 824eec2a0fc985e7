"""From samples to batches: joined without padding, in an order that can be repeated, read ahead in threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from crossclr.features.batch import Batch, Side
from crossclr.features.errors import DataError
from crossclr.features.hashing import stable_hash
from crossclr.features.ragged import Ragged
from crossclr.features.source import Rows, Sample, Source, clip_keys

READ_AHEAD = 2  # finished batches that may wait for the model, beyond those being read
_Read = Callable[[int], "Batch | None"]


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


def epoch_order(count: int, seed: int, epoch: int) -> list[int]:
    """The order of an epoch: it depends on these three numbers alone.

    Example:
        >>> epoch_order(4, seed=0, epoch=1) == epoch_order(4, seed=0, epoch=1), sorted(epoch_order(4, 0, 1))
        (True, [0, 1, 2, 3])
    """
    order: list[int] = np.random.default_rng([seed, epoch]).permutation(count).tolist()
    return order


def bounds(samples: int, number: int, count: int) -> tuple[int, int]:
    """First sample, and the one after the last, of one of ``count`` equal parts of a batch.

    Example:
        >>> [bounds(5, number, 2) for number in range(2)]
        [(0, 2), (2, 5)]
    """
    return number * samples // count, (number + 1) * samples // count


def batches(
    source: Source,
    split: str,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    start: int = 0,
    shuffle: bool = True,
    workers: int = 2,
    share: tuple[int, int] = (0, 1),
) -> Generator[Batch, None, None]:
    """The batches of one epoch, read ahead in background threads.

    The order depends only on (seed, epoch) and the random choices within a sample only on (seed, epoch, key), so an
    epoch taken up again at batch ``start`` goes on with the very same batches, whatever the number of workers. The
    last batch may be smaller. Closing the iterator stops the threads.

    Args:
        source: the data.
        split: the split to read.
        batch_size: samples (videos) in a batch.
        seed: seed of the run.
        epoch: number of the epoch.
        start: the first batch to give.
        shuffle: training: a new order each epoch and random frames and sentences. False is evaluation: the source's
            order, the interval centres, and the first sentence of each clip.
        workers: threads that read; 0 reads in the caller's thread.
        share: (number, count): read only this part of each batch, for one of several processes. Where a batch has
            fewer samples than there are parts, a part without any is its first sample.

    Raises:
        DataError: at the batch that holds the faulty sample.

    Example:
        >>> from crossclr.features import ArraySource
        >>> source = ArraySource(np.arange(10.0).reshape(5, 2), np.zeros((5, 3)))
        >>> [batch.keys for batch in batches(source, "train", 2, shuffle=False)]
        [('0', '1'), ('2', '3'), ('4',)]
    """
    if batch_size < 1 or start < 0 or workers < 0:
        raise ValueError(f"batch_size >= 1, start >= 0, workers >= 0 needed; got {batch_size}, {start}, {workers}")
    keys = source.keys(split)
    order: Sequence[int] = range(len(keys))
    if shuffle:  # shards have an order of their own, which their disks like
        own: Callable[..., Sequence[int]] | None = getattr(source, "order", None)
        order = own(split, seed, epoch) if own is not None else epoch_order(len(keys), seed, epoch)
    stop = threading.Event()

    def read(number: int) -> Batch | None:
        samples = []
        places = order[number * batch_size : (number + 1) * batch_size]
        first, last = bounds(len(places), *share)
        for place in places[first:last] if first < last else places[:1]:
            if stop.is_set():
                return None
            key = keys[place]
            if shuffle:
                samples.append(source.read(key, np.random.default_rng([seed, epoch, stable_hash(key)])))
            else:
                samples.append(first_sentences(source.read(key)))
        return collate(samples)

    numbers = range(start, -(-len(keys) // batch_size))
    return _in_thread_order(read, numbers, workers, stop) if workers else _in_place(read, numbers)


def _in_place(read: _Read, numbers: Sequence[int]) -> Generator[Batch, None, None]:
    for number in numbers:
        batch = read(number)
        if batch is not None:
            yield batch


def _in_thread_order(
    read: _Read, numbers: Sequence[int], workers: int, stop: threading.Event
) -> Generator[Batch, None, None]:
    waiting: deque[Future[Batch | None]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="crossclr-read")
    todo = iter(numbers)
    try:
        while True:
            while len(waiting) < workers + READ_AHEAD and (number := next(todo, None)) is not None:
                waiting.append(pool.submit(read, number))
            if not waiting:
                return
            batch = waiting.popleft().result()  # a fault comes up here, at its own batch
            if batch is not None:
                yield batch
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
