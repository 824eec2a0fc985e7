"""Which rows of a video belong to a clip, and which rows of a long sequence are used."""

import numpy as np
import numpy.typing as npt

from crossclr.features.sample import Rows

Indices = npt.NDArray[np.int64]


def clip_bounds(
    rows: int,
    duration: float,
    starts: npt.NDArray[np.float64],
    stops: npt.NDArray[np.float64],
    add_stop_frame: int = 0,
    expand_segments: int = 0,
) -> Indices:
    """Row ranges of clips, cut as COOT cuts them.

    The rows are spread evenly over the duration; starts are rounded down, stops are rounded up and moved by
    ``add_stop_frame``, and the range ends with the video. A range of fewer than ``expand_segments`` rows grows by one
    row to the left, one to the right, and so on, as far as the video goes.

    Args:
        rows: feature rows of the whole video.
        duration: its length in seconds.
        starts: (clips,) start of each clip in seconds.
        stops: (clips,) stop of each clip in seconds.
        add_stop_frame: rows added after each stop.
        expand_segments: minimum number of rows of a clip.

    Returns:
        (clips, 2) first row and the row after the last one; the caller must handle empty ranges.

    Example:
        >>> clip_bounds(100, 50.0, np.array([0.0, 10.2]), np.array([5.0, 12.0]), add_stop_frame=2).tolist()
        [[0, 12], [20, 26]]
        >>> clip_bounds(100, 50.0, np.array([10.0]), np.array([11.0]), expand_segments=5).tolist()
        [[18, 23]]
    """
    rate = rows / duration
    first = np.maximum(np.floor(rate * starts).astype(np.int64), 0)
    last = np.minimum(np.ceil(rate * stops).astype(np.int64) + add_stop_frame, rows)
    bounds = np.stack([first, last], axis=1)  # (clips, 2)
    least = min(expand_segments, rows)
    for clip in np.flatnonzero(bounds[:, 1] - bounds[:, 0] < least):
        stop = max(int(bounds[clip, 1]), 0)
        start = min(int(bounds[clip, 0]), stop)
        missing = least - (stop - start)
        # Half of the missing rows (rounded up) go to the left, the rest to the right; what does not fit on one side
        # goes to the other: the same as growing by one row in turn.
        left = min((missing + 1) // 2, start)
        right = min(missing - left, rows - stop)
        left = missing - right
        bounds[clip] = start - left, stop + right
    return bounds


def central_indices(rows: int, limit: int) -> Indices:
    """The centres of ``limit`` equal intervals: what evaluation sees of a sequence longer than ``limit``.

    Example:
        >>> central_indices(8, 4).tolist()
        [1, 3, 5, 7]
    """
    # floor(i · rows / limit + rows / (2 · limit)), in integers, so that rounding errors play no role
    centres: Indices = (2 * np.arange(limit, dtype=np.int64) + 1) * rows // (2 * limit)
    return centres


def random_indices(rows: int, limit: int, rng: np.random.Generator) -> Indices:
    """One random row of each of ``limit`` intervals, in order: the rows that training sees of a long sequence.

    The start points of equal intervals are rounded (halves down), the resulting interval lengths are shuffled,
    and one position is drawn in each interval.

    Example:
        >>> random_indices(4, 4, np.random.default_rng(0)).tolist()
        [0, 1, 2, 3]
    """
    edges = np.ceil(np.arange(limit + 1) * (rows / limit) - 0.5).astype(np.int64)
    lengths = np.diff(edges)
    rng.shuffle(lengths)
    starts = np.cumsum(lengths) - lengths
    chosen: Indices = starts + np.floor(rng.random(limit) * lengths).astype(np.int64)
    return chosen


def limit_rows(rows: Rows, limit: int | None, rng: np.random.Generator | None = None) -> Rows:
    """At most ``limit`` rows of a sequence: the interval centres, or random rows if a generator is given.

    Example:
        >>> limit_rows(np.arange(8, dtype=np.float32).reshape(8, 1), 4).ravel().tolist()
        [1.0, 3.0, 5.0, 7.0]
    """
    if limit is None or len(rows) <= limit:
        return rows
    return rows[central_indices(len(rows), limit) if rng is None else random_indices(len(rows), limit, rng)]


def add_noise(rows: Rows, scale: float, rng: np.random.Generator) -> Rows:
    """Rows plus normal noise of the given standard deviation, truncated at two deviations.

    Example:
        >>> noisy = add_noise(np.zeros((100, 4), np.float32), 0.5, np.random.default_rng(0))
        >>> bool(np.abs(noisy).max() <= 1.0)
        True
    """
    noise = rng.standard_normal(rows.shape, dtype=np.float32)
    outside = np.flatnonzero(np.abs(noise) > 2)
    while len(outside):  # one value in 22 is redrawn, so this takes a few rounds
        noise.flat[outside] = rng.standard_normal(len(outside), dtype=np.float32)
        outside = outside[np.abs(noise.flat[outside]) > 2]
    return rows + np.float32(scale) * noise


def resample(rows: Rows, length: int) -> Rows:
    """The sequence resampled to ``length`` rows, by linear interpolation between row centres.

    Row i of the result represents the i-th of ``length`` equal intervals of time, so sequences with different frame
    rates are aligned. If the length does not change, the rows are returned unchanged.

    Example:
        >>> resample(np.array([[0.0], [2.0]], np.float32), 4).ravel().tolist()
        [0.0, 0.5, 1.5, 2.0]
    """
    count = len(rows)
    if count == length:
        return rows
    position = np.clip((np.arange(length) + 0.5) * (count / length) - 0.5, 0, count - 1)
    below = np.minimum(position.astype(np.int64), max(count - 2, 0))
    weight = (position - below).astype(np.float32)[:, None]  # (length, 1)
    above = np.minimum(below + 1, count - 1)
    mixed: Rows = rows[below] * (1 - weight) + rows[above] * weight
    return mixed
