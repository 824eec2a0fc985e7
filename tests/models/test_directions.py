"""Keys and words of directions."""

import pytest

from crossclr.models.directions import Direction, direction_words, directions_of


@pytest.mark.parametrize("names", [("video", "text"), ("a", "b"), ("text-a", "text"), ("noto+fluent", "x y.z-")])
@pytest.mark.parametrize("level", ["clip", "video"])
def test_a_key_is_read_back(names, level):
    a, b = names
    keys = directions_of(names, level)
    found = [Direction.parse(key) for key in keys]
    assert found == [Direction(level, query=b, searched=a), Direction(level, query=a, searched=b)]
    assert [one.key for one in found] == keys


@pytest.mark.parametrize("key", ["clip/R@1", "text->video", "clip/->video", "clip/text->", ""])
def test_other_names_are_no_directions(key):
    with pytest.raises(ValueError, match="not the key of a direction"):
        Direction.parse(key)


def test_the_level_is_named_only_if_there_are_two():
    clips, videos = (directions_of(("video", "text"), level) for level in ("clip", "video"))
    assert list(direction_words(videos).values()) == ["text → video", "video → text"]
    assert direction_words([*clips, *videos])[clips[1]] == "video → text (clips)"
