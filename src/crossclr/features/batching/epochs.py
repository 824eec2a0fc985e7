"""From samples to batches: joined without padding, in an order that can be repeated, read ahead in threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from crossclr.features.batch import Batch
from crossclr.features.batching.collate import collate, first_sentences
from crossclr.features.keys import stable_hash
from crossclr.features.source import Source

READ_AHEAD = 2  # finished batches that may wait for the model, beyond those being read
_Read = Callable[[int], "Batch | None"]


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
