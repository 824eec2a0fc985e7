import pytest

from crossclr.experts.extraction.recordings import Datapoint
from crossclr.experts.extraction.training_set import Sides, assign_splits, choose_sides, segments_within
from crossclr.experts.texts.segments import Segment
from tests.support.fake_experts import Colour, Letters, Loudness, Motion


@pytest.mark.parametrize(
    ("experts", "captioned", "sides"),
    [
        ([Colour(), Letters()], True, (["colour"], ["letters"], False)),
        ([Loudness(), Colour(), Letters()], True, (["colour", "loudness"], ["letters"], False)),
        ([Colour(), Loudness()], False, (["colour"], ["loudness"], True)),
        ([Colour(), Motion()], False, (["colour"], ["motion"], True)),
        ([Colour()], False, (["colour"], [], True)),
    ],
)
def test_which_expert_is_which_modality(experts, captioned, sides):
    assert choose_sides(experts, captioned) == Sides(*sides)


def test_segments_without_length_are_left_out_one_by_one():
    point = Datapoint(
        "a", "a", None, (Segment("x", 1, 1), Segment("y", 2, 3), Segment("z", 9, 10), Segment("w", 3, 99))
    )
    kept, problems = segments_within(point, 4.0, "a.mp4")
    assert [(part["text"], part["start_sec"], part["stop_sec"]) for part in kept] == [("y", 2, 3), ("w", 3, 4)]
    assert [problem.what.split(" was")[0] for problem in problems] == ["segment 0", "segment 2"]


def test_a_key_keeps_its_split_when_others_come():
    few, many = assign_splits(["a", "b", "c"]), assign_splits([*"abcdefgh"])
    assert {key: many[key] for key in "abc"} == few
    assert set(assign_splits([*"abc"], {"train": 1.0}).values()) == {"train"}
