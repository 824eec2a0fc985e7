import pytest

from crossclr.extract.caption_files import Segment, parse_seconds


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
