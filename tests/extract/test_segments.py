from itertools import pairwise

import numpy as np
import pytest

from crossclr.extract.segments import Cutting, Segment, parse_seconds


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(3, 3.0), (2.5, 2.5), ("7.25", 7.25), ("1:02", 62.0), ("01:00:01.5", 3601.5), ("00:00:02,500", 2.5), (" 4 ", 4.0)],
)
def test_times(given, seconds):
    assert parse_seconds(given) == seconds


@pytest.mark.parametrize("given", ["soon", "1:2:3:4", "", None, float("nan"), "inf", True])
def test_what_is_no_time(given):
    with pytest.raises(ValueError, match="not a time"):
        parse_seconds(given)


def test_a_segment_within_its_recording():
    assert Segment("x").within(8.0) == (0.0, 8.0)
    assert Segment("x", 2.0).within(8.0) == (2.0, 8.0)
    assert Segment("x", 5.0, 30.0).within(8.0) == (5.0, 30.0)


@pytest.mark.parametrize(
    ("start", "stop", "words"),
    [(4, 4, "is empty"), (5, 3, "reversed"), (-1, 3, "negative"), (9, 12, "after the end")],
)
def test_a_segment_that_is_nowhere(start, stop, words):
    with pytest.raises(ValueError, match=words):
        Segment("x", start, stop).within(8.0)


@pytest.mark.parametrize("duration", [3.0, 10.0, 10.5, 14.9, 15.0, 61.3])
def test_windows_cover_everything_and_have_one_length(duration):
    spans = Cutting.parse("windows=10s/5s").spans(duration)
    assert spans[0][0] == 0
    assert spans[-1][1] == pytest.approx(duration)
    for (start, stop), (after, _) in pairwise(spans):
        assert after <= stop
        assert after > start
    assert all(stop - start == pytest.approx(min(10.0, duration), abs=2e-3) for start, stop in spans)


def test_scenes_end_where_the_features_change():
    rng = np.random.default_rng(0)
    lengths, edges = [7, 12, 3, 9], [7.0, 19.0, 22.0]
    rows = np.concatenate([rng.normal(size=(1, 64)) + 0.1 * rng.normal(size=(n, 64)) for n in lengths])
    spans = Cutting.parse("scenes").spans(31.0, rows.astype(np.float32))
    assert [stop for _, stop in spans[:-1]] == edges
    assert spans[-1] == (22.0, 31.0)


def test_a_still_picture_is_one_scene():
    rows = np.ones((40, 8), np.float32) + np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32) * 0.01
    assert Cutting.parse("scenes").spans(40.0, rows) == [(0.0, 40.0)]
    assert Cutting.parse("scenes").spans(40.0) == [(0.0, 40.0)]


@pytest.mark.parametrize("text", ["", "shots", "windows", "windows=0", "windows=5/10", "windows=-1", "windows=a"])
def test_other_words_are_refused(text):
    with pytest.raises(ValueError, match="windows=10s/5s"):
        Cutting.parse(text)
