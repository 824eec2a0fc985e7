"""The batches of an epoch, in a reproducible order, read ahead in background threads."""

from collections.abc import Generator, Sequence

from crossclr.features.batch import Batch
from crossclr.features.batching.order import bounds
from crossclr.features.batching.read_ahead import read_ahead
from crossclr.features.source import Source

READ_AHEAD = 2  # finished batches that may wait for the model, in addition to those being read


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
    """The batches of one epoch.

    The order depends on (seed, epoch) only and the random choices within a sample on (seed, epoch, key) only, so an
    epoch that resumes at batch ``start`` gives the same batches, whatever the number of workers. The last batch may be
    smaller. Closing the iterator stops the threads.

    Args:
        source: the data.
        split: the split to read.
        batch_size: samples (videos) per batch.
        seed: seed of the run.
        epoch: number of the epoch.
        start: the first batch to return.
        shuffle: True for training: a new order each epoch, random frames and sentences. False for evaluation: the
            source's order, the interval centres and the first sentence of each clip.
        workers: reader threads; 0 reads in the caller's thread, and so does a source that is in memory.
        share: (number, count): return only this part of each batch, for one of several processes. If a batch has fewer
            samples than there are parts, an empty part becomes the first sample.

    Raises:
        DataError: a sample is invalid; raised at its batch.

    Example:
        >>> import numpy as np
        >>> from crossclr.features import ArraySource
        >>> source = ArraySource({"video": np.arange(10.0).reshape(5, 2), "text": np.zeros((5, 3))})
        >>> [batch.keys for batch in batches(source, "train", 2, shuffle=False)]
        [('0', '1'), ('2', '3'), ('4',)]
    """
    if batch_size < 1 or start < 0 or workers < 0:
        raise ValueError(f"batch_size >= 1, start >= 0, workers >= 0 needed; got {batch_size}, {start}, {workers}")
    count = len(source.keys(split))
    order: Sequence[int] = source.order(split, seed, epoch) if shuffle else range(count)

    def read(number: int) -> Batch:
        places = order[number * batch_size : (number + 1) * batch_size]
        first, last = bounds(len(places), *share)
        return source.gather(split, places[first:last] or places[:1], seed if shuffle else None, epoch)

    numbers = range(start, -(-count // batch_size))
    if workers == 0 or source.in_memory:
        return (read(number) for number in numbers)
    return read_ahead(read, numbers, workers, pending=workers + READ_AHEAD)
