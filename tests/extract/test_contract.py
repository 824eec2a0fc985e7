import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossclr.extract.contract import ExpertError, Needs, SoundExpert, SoundStream, WindowExpert, window_spans


class Sums(SoundExpert):
    """The sum of each window: what a network would see, without a network."""

    name, dim = "sums", 1

    def __init__(self, window, stride, rows_at_once=7):
        self.needs = Needs("sound", 100, window, stride)
        self.rows_at_once = rows_at_once

    def encode(self, samples):
        needs = self.needs
        rows = (len(samples) - needs.window) // needs.stride + 1
        assert len(samples) == (rows - 1) * needs.stride + needs.window
        return np.array([[samples[r * needs.stride : r * needs.stride + needs.window].sum()] for r in range(rows)])


def naive_spans(frames, window, stride):
    """COOT's loop over start points, written out."""
    found = []
    for start in range(0, frames, stride):
        if start + window <= frames:
            found.append((start, start + window))
        elif frames > window:
            found.append((frames - window, frames))
    return found or [(0, min(frames, window // 2))]


@given(st.integers(1, 300), st.sampled_from([(32, 16), (8, 8), (10, 3), (4, 1), (2, 2)]))
def test_windows_are_cut_as_coot_cuts_them(frames, sizes):
    assert window_spans(frames, *sizes) == naive_spans(frames, *sizes)


@given(
    st.integers(0, 400), st.sampled_from([(10, 10), (12, 4), (9, 2), (31, 5)]), st.integers(1, 9), st.integers(1, 50)
)
def test_a_sound_in_pieces_gives_the_rows_of_the_whole(length, sizes, at_once, piece):
    window, stride = sizes
    samples = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    rows = max(1, int(length / stride + 0.5))
    front = (window - stride) // 2
    padded = np.concatenate([np.zeros(front), samples, np.zeros(window + stride)])
    expected = [padded[row * stride : row * stride + window].sum() for row in range(rows)]
    stream = SoundStream(Sums(window, stride, at_once))
    parts = [part for start in range(0, length, piece) for part in stream.add(samples[start : start + piece])]
    found = np.concatenate([*parts, *stream.end()])
    assert found.shape == (rows, 1)
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-4)


@pytest.mark.parametrize("wanted", [10, 55, 100, 173])
def test_a_sound_is_as_long_as_its_video(wanted):
    stream = SoundStream(Sums(10, 10, 3))
    found = np.concatenate([*stream.add(np.ones(100, np.float32)), *stream.end(wanted)])
    rows = int(wanted / 10 + 0.5)
    assert len(found) >= rows
    expected = [10.0 if row < 10 else 0.0 for row in range(rows)]
    np.testing.assert_allclose(found[:rows, 0], expected)


def test_a_window_expert_takes_the_frames_of_a_video():
    class Means(WindowExpert):
        dim, batch_size = 1, 2
        needs = Needs("windows", 10, 4, 2)

        def prepare(self, picture):
            return torch.tensor([float(picture)])

        def encode(self, prepared):
            return np.array([[float(window.mean())] for window in prepared], np.float32)

    rows = Means()(range(7))
    assert rows[:, 0].tolist() == [1.5, 3.5, 4.5, 4.5]  # 0-3, 2-5, and twice the last four


@pytest.mark.parametrize("values", [{"rate": 0}, {"window": 0}, {"stride": 0}, {"kind": "sound", "stride": 2}])
def test_impossible_needs_are_refused(values):
    with pytest.raises(ExpertError):
        Needs(**{"kind": "frames", **values})
