import json

import pytest

from crossclr.captions.caption_metrics import Caption, load_predictions, load_references, paragraph, save_predictions


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_saved_predictions_come_back(tmp_path):
    predictions = {"v": [Caption("cut it", 1.5, 2.0), Caption("stir", 3.0, 4.0)], "w": []}
    path = save_predictions(predictions, tmp_path / "deep" / "p.json")
    assert load_predictions(path) == predictions
    assert json.loads(path.read_text())["results"]["v"][0] == {"sentence": "cut it", "timestamp": [1.5, 2.0]}


@pytest.mark.parametrize(
    ("entry", "captions"),
    [
        ([{"sentence": "a", "timestamp": [1, 2], "gt_sentence": "b"}], [Caption("a", 1.0, 2.0)]),
        ({"sentences": ["a", "b"], "timestamps": [[1, 2], [3, 4]]}, [Caption("a", 1.0, 2.0), Caption("b", 3.0, 4.0)]),
        (["a", "b"], [Caption("a"), Caption("b")]),
        ("a b", [Caption("a b")]),
        ([], []),
    ],
)
def test_every_form_of_predictions(tmp_path, entry, captions):
    assert load_predictions(write(tmp_path / "p.json", {"v": entry})) == {"v": captions}
    assert load_predictions(write(tmp_path / "p.json", {"results": {"v": entry}})) == {"v": captions}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ([1], "must hold an object"),
        ({"v": 3}, "prediction of 'v'"),
        ({"v": [{"text": "a"}]}, "prediction of 'v'"),
        ({"v": [{"sentence": 3}]}, "prediction of 'v'"),
        ({"v": {"sentences": ["a"], "timestamps": [[0, 1], [1, 2]]}}, "1 sentences but 2 timestamps"),
    ],
)
def test_faulty_predictions_are_named(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        load_predictions(write(tmp_path / "p.json", content))


def test_a_video_may_be_in_one_of_two_files(tmp_path):
    """As in ActivityNet's two validation files."""
    one = write(tmp_path / "1.json", {"both": "a b", "first": "c"})
    two = write(tmp_path / "2.json", {"both": "x y", "second": "z"})
    assert load_references([one, two]) == {"both": ["a b", "x y"], "first": ["c"], "second": ["z"]}


def test_references_of_several_files_and_forms(tmp_path):
    one = write(tmp_path / "1.json", {"v": "a b", "w": {"captions": ["c", "d"], "split": "test"}})
    two = write(tmp_path / "2.json", {"w": ["e"], "v": {"sentences": ["x", "y"], "timestamps": [[0, 1], [1, 2]]}})
    assert load_references([one, two]) == {"v": ["a b", "x y"], "w": ["c", "d", "e"]}
    with pytest.raises(ValueError, match="have no video in common"):
        load_references([one, write(tmp_path / "3.json", {"x": "a"})])
    with pytest.raises(ValueError, match="reference of 'v'"):
        load_references([write(tmp_path / "4.json", {"v": []})])
    with pytest.raises(ValueError, match="at least one"):
        load_references([])


def test_equal_starts_keep_their_order():
    assert paragraph([Caption("b", 2), Caption("c", 1), Caption("a", 2)]) == "c. b. a. "
