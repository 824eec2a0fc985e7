"""Videos with seconds, tables, and what samples name themselves."""

import json

import numpy as np
import pytest

from crossclr import api
from crossclr.data import DataError
from crossclr.data.coot import read_entries
from crossclr.search import Searcher, build_index
from crossclr.search.run_items import MediaFinder
from crossclr.training.config_files import check_config
from tests.support.pairs import pair_data, read
from tests.support.tiny_runs import tiny_values, write_coot


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """A run on data in COOT's layout, with a video file for some of its videos."""
    folder = tmp_path_factory.mktemp("videos")
    values = tiny_values(write_coot(folder / "data"))
    values["training"]["epochs"] = 1
    run = api.train(check_config(values), out=folder / "run", baseline=False)
    entries = read_entries(folder / "data" / "meta_all.json")
    (folder / "media" / "deep").mkdir(parents=True)
    for entry in entries[:3]:
        (folder / "media" / "deep" / f"{entry.data_key}.mp4").write_bytes(b"video")
    (folder / "media" / "notes.txt").write_text("no medium")
    return run, entries, folder / "media"


def test_clips_of_a_video_have_its_file_and_their_seconds(videos):
    run, entries, media = videos
    splits = sorted({entry.split for entry in entries})
    build_index(run, splits=splits, media=media)
    searcher = Searcher.open(run, text=False)
    assert searcher.meta["media_roots"] == [str(media)]
    for entry in entries[:4]:
        for clip in range(len(entry.texts)):
            key = entry.key if len(entry.texts) == 1 else f"{entry.key}/{clip}"
            item = searcher.item(f"video/{key}")
            if entry in entries[:3]:
                assert item.file == str(media / "deep" / f"{entry.data_key}.mp4")
                assert (item.media, item.start, item.stop) == ("video", entry.starts[clip], entry.stops[clip])
            else:
                assert item.media == ""
            assert item.text == entry.texts[clip]
            assert searcher.item(f"text/{key}").text == entry.texts[clip]
    assert searcher.search(like=searcher.items.columns("name", where="text")[0][0], find="video", top=2)
    searcher.close()
    again = Searcher.open(run)  # its text features are not those of the text expert, and that is said
    assert "--like ID" in again.no_text
    again.close()


def source():
    return pair_data(np.ones((3, 4)), np.zeros((3, 5, 2)), ids=["x", "y", "z"])


def test_a_table_names_files_and_seconds(tmp_path):
    table = {"x": "one.wav", "y": {"file": "sub/two.mp4", "start": 3, "stop": 4.5}}
    (tmp_path / "table.json").write_text(json.dumps(table))
    finder = MediaFinder(tmp_path / "table.json")
    samples = {key: read(source(), key) for key in "xyz"}
    x, y, z = (finder.find(samples[key], 0, key) for key in "xyz")
    assert (x.kind, x.file, x.start) == ("audio", str(tmp_path / "one.wav"), None)
    assert (y.kind, y.file, y.start, y.stop) == ("video", str(tmp_path / "sub" / "two.mp4"), 3.0, 4.5)
    assert z is None
    assert finder.roots == {str(tmp_path), str(tmp_path / "sub")}


def test_a_sample_may_name_its_own_file(tmp_path):
    from dataclasses import replace

    sample = replace(read(source(), "x"), media=(str(tmp_path / "x.png"),), times=((0.5, 2.0),))
    found = MediaFinder().find(sample, 0, "x")
    assert (found.kind, found.start, found.stop) == ("image", 0.5, 2.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [("[", "JSON"), ("[]", "must hold an object"), ('{"x": 5}', "media of 'x'"), ('{"x": "a.exe"}', "not an image")],
)
def test_a_wrong_table_is_reported(tmp_path, content, message):
    (tmp_path / "table.json").write_text(content)
    with pytest.raises(DataError, match=message):
        MediaFinder(tmp_path / "table.json").find(read(source(), "x"), 0, "x")


def test_a_place_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        MediaFinder(tmp_path / "none")
