import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossclr.data.sequences import (
    add_noise,
    central_indices,
    clip_bounds,
    limit_rows,
    random_indices,
    resample,
)


def cut_by_hand(rows, duration, start_sec, stop_sec, add_stop, least):
    """One clip, grown row by row."""
    start = max(math.floor(rows / duration * start_sec), 0)
    stop = min(math.ceil(rows / duration * stop_sec) + add_stop, rows)
    least = min(least, rows)
    left = True
    while stop - start < least:
        if left and start > 0:
            start -= 1
        elif not left and stop < rows:
            stop += 1
        left = not left
    return [start, stop]


@given(
    rows=st.integers(1, 200),
    duration=st.floats(0.5, 300),
    shares=st.tuples(st.floats(0, 0.99), st.floats(0, 1)),
    add_stop=st.integers(0, 3),
    least=st.integers(0, 30),
)
def test_clips_are_cut_as_by_hand(rows, duration, shares, add_stop, least):
    start = shares[0] * duration
    stop = start + shares[1] * (duration - start)
    got = clip_bounds(rows, duration, np.array([start]), np.array([stop]), add_stop, least)
    assert got.tolist() == [cut_by_hand(rows, duration, start, stop, add_stop, least)]


def test_a_clip_behind_the_end_is_empty():
    start, stop = clip_bounds(10, 5.0, np.array([6.0]), np.array([7.0]))[0]
    assert stop <= start


@given(rows=st.integers(1, 1000), limit=st.integers(1, 100))
def test_interval_centres(rows, limit):
    got = central_indices(rows, limit)
    assert got.tolist() == [math.floor(Fraction(i * rows, limit) + Fraction(rows, 2 * limit)) for i in range(limit)]
    assert got.min() >= 0
    assert got.max() < rows
    assert (np.diff(got) >= 0).all()


@given(limit=st.integers(1, 80), extra=st.integers(0, 400), seed=st.integers(0, 2**32 - 1))
def test_random_rows_are_ordered_and_one_of_each_interval(limit, extra, seed):
    rows = limit + extra
    got = random_indices(rows, limit, np.random.default_rng(seed))
    assert len(got) == limit
    assert got.min() >= 0
    assert got.max() < rows
    assert (np.diff(got) > 0).all() or rows < limit
    if extra == 0:
        assert got.tolist() == list(range(limit))


def test_random_rows_follow_a_loop_by_hand():
    rows, limit = 205, 80
    rng = np.random.default_rng(3)
    got = random_indices(rows, limit, np.random.default_rng(3))
    edges = [math.ceil(i * rows / limit - 0.5) for i in range(limit + 1)]  # halves are rounded down
    lengths = np.array([edges[i + 1] - edges[i] for i in range(limit)])
    rng.shuffle(lengths)
    draws, start, want = rng.random(limit), 0, []
    for length, draw in zip(lengths.tolist(), draws, strict=True):
        want.append(math.floor(start + draw * length))
        start += length
    assert got.tolist() == want


def test_every_row_can_be_drawn():
    seen = set()
    for seed in range(200):
        seen.update(random_indices(25, 10, np.random.default_rng(seed)).tolist())
    assert seen == set(range(25))


def test_limit_keeps_short_sequences():
    rows = np.ones((80, 2), np.float32)
    assert limit_rows(rows, 80) is rows
    assert limit_rows(rows, None) is rows
    assert len(limit_rows(np.ones((81, 2), np.float32), 80, np.random.default_rng(0))) == 80


def test_noise_is_a_truncated_normal():
    noise = add_noise(np.zeros((400, 500), np.float32), 0.01, np.random.default_rng(0)) / 0.01
    assert np.abs(noise).max() <= 2 + 1e-6
    # a standard normal cut at +-2 has variance 1 - 4 phi(2) / (2 Phi(2) - 1) = 0.7737
    assert noise.var() == pytest.approx(0.7737, abs=0.005)
    assert abs(noise.mean()) < 0.01
    assert noise.dtype == np.float32


@given(count=st.integers(1, 40), length=st.integers(1, 40))
def test_resampling_agrees_with_numpy_interp(count, length):
    rows = np.random.default_rng(count).standard_normal((count, 3)).astype(np.float32)
    at = (np.arange(length) + 0.5) / length  # in shares of the whole time
    known = (np.arange(count) + 0.5) / count
    want = np.stack([np.interp(at, known, rows[:, channel].astype(np.float64)) for channel in range(3)], axis=1)
    got = resample(rows, length)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=1e-5)
    if count == length:
        assert got is rows
