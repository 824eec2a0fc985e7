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

    Returns:
        (clips, 2) first row and the row after the last one; the caller must handle empty ranges.
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
    """The centres of ``limit`` equal intervals: what evaluation sees of a sequence longer than ``limit``."""
    # floor(i · rows / limit + rows / (2 · limit)), in integers, so that rounding errors play no role
    centres: Indices = (2 * np.arange(limit, dtype=np.int64) + 1) * rows // (2 * limit)
    return centres


def random_indices(rows: int, limit: int, rng: np.random.Generator) -> Indices:
    """One random row of each of ``limit`` intervals, in order: the rows that training sees of a long sequence.

    The start points of equal intervals are rounded (halves down), the resulting interval lengths are shuffled,
    and one position is drawn in each interval.
    """
    edges = np.ceil(np.arange(limit + 1) * (rows / limit) - 0.5).astype(np.int64)
    lengths = np.diff(edges)
    rng.shuffle(lengths)
    starts = np.cumsum(lengths) - lengths
    chosen: Indices = starts + np.floor(rng.random(limit) * lengths).astype(np.int64)
    return chosen


def limit_rows(rows: Rows, limit: int | None, rng: np.random.Generator | None = None) -> Rows:
    """At most ``limit`` rows of a sequence: the interval centres, or random rows if a generator is given."""
    if limit is None or len(rows) <= limit:
        return rows
    return rows[central_indices(len(rows), limit) if rng is None else random_indices(len(rows), limit, rng)]


def add_noise(rows: Rows, scale: float, rng: np.random.Generator) -> Rows:
    """Rows plus normal noise of the given standard deviation, truncated at two deviations."""
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
