import json
import os
from pathlib import Path

import pytest

from crossclr.extract.recordings import list_media
from crossclr.extract.segments import Segment


@pytest.fixture
def folder(tmp_path):
    videos = tmp_path / "videos"
    for name in ("b.mp4", "a.mp4", "sub/c.mkv", "notes.txt", ".hidden/d.mp4", "._a.mp4"):
        (videos / name).parent.mkdir(parents=True, exist_ok=True)
        (videos / name).write_bytes(b"x")
    return videos


def captions(tmp_path, content):
    (tmp_path / "captions.json").write_text(json.dumps(content))
    return tmp_path / "captions.json"


def test_a_folder_in_the_order_of_names(folder):
    listing = list_media(folder)
    assert [recording.key for recording in listing.recordings] == ["a", "b", "c"]
    assert [point.segments for point in listing.datapoints] == [(), (), ()]
    assert not listing.problems
    assert not listing.captioned


def test_subtitles_beside_a_video_are_its_sentences(folder):
    (folder / "a.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nCut.\n")
    (folder / "b.vtt").write_text("nothing")
    listing = list_media(folder)
    assert listing.datapoints[0].segments == (Segment("Cut.", 1.0, 2.0),)
    assert [problem.name for problem in listing.problems] == ["b.vtt"]


def test_captions_find_files_by_name_stem_or_path(folder, tmp_path):
    table = captions(tmp_path, {"a": "x", "elsewhere/b.mp4": "y", "sub/c.mkv": "z", "gone.mp4": "q", "none": []})
    listing = list_media(folder, table)
    assert [(point.key, point.recording) for point in listing.datapoints] == [("a", "a"), ("b", "b"), ("c", "c")]
    assert {problem.name: problem.what for problem in listing.problems} == {
        "gone.mp4": "the captions name it, but there is no such file",
        "none": "the captions name it, but there is no such file",
    }


def test_captions_find_names_with_decomposed_umlauts(folder, tmp_path):
    (folder / "u\u0308ber.mp4").touch()
    listing = list_media(folder, captions(tmp_path, {"\u00fcber.mp4": "x"}))
    assert [point.recording for point in listing.datapoints] == ["u\u0308ber"]


def test_several_datapoints_may_share_a_video(folder, tmp_path):
    part = {"data_key": "a", "split": "val", "segments": [{"text": "x", "start_sec": 0, "stop_sec": 1}]}
    listing = list_media(folder, captions(tmp_path, {"a_1": part, "a_2": part}))
    assert [(point.key, point.recording, point.split) for point in listing.datapoints] == [
        ("a_1", "a", "val"),
        ("a_2", "a", "val"),
    ]
    assert [recording.key for recording in listing.recordings] == ["a"]
    assert listing.unused == ["b.mp4", "c.mkv"]


def test_a_table_names_files_beside_itself(folder):
    (folder / "table.csv").write_text("file,text\na.mp4,one\nsub/c.mkv,two\ngone.mp4,three\n")
    listing = list_media(folder / "table.csv")
    assert [(point.key, point.segments[0].text) for point in listing.datapoints] == [("a", "one"), ("c", "two")]
    assert [problem.name for problem in listing.problems] == ["gone.mp4"]


def test_files_of_one_name_get_keys_that_hdf5_allows(folder):
    (folder / "sub" / "a.mp4").write_bytes(b"x")
    (folder / "b.webm").write_bytes(b"x")
    keys = [recording.key for recording in list_media(folder).recordings]
    assert keys == ["a.mp4", "b.mp4", "b.webm", "sub__a.mp4", "c"]


@pytest.mark.skipif(os.name == "nt", reason="names are Unicode there")
def test_an_unreadable_name_is_told_and_the_rest_goes_on(folder):
    raw = os.fsencode(folder) + b"/caf\xe9.mp4"
    try:
        Path(os.fsdecode(raw)).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system refuses names that are not UTF-8")
    listing = list_media(folder)
    assert [(problem.name, problem.what) for problem in listing.problems] == [
        ("caf\\xe9.mp4", "the name is not UTF-8; rename the file")
    ]
    assert len(listing.recordings) == 3


def test_media_that_are_not_read_are_reported(folder):
    for name in ("scan.TIFF", "sub/phone.jxl", "old.3gp", "song.wma"):
        (folder / name).write_bytes(b"x")
    listing = list_media(folder)
    assert {problem.name: problem.what for problem in listing.problems} == {
        "scan.TIFF": "files of type .tiff are not read; convert it to PNG or JPEG",
        "sub/phone.jxl": "files of type .jxl are not read; convert it to PNG or JPEG",
        "old.3gp": "files of type .3gp are not read; convert it to MP4",
        "song.wma": "files of type .wma are not read; convert it to WAV or FLAC",
    }
    assert [recording.key for recording in listing.recordings] == ["a", "b", "c"]


def test_all_files_are_kept_with_the_sentences_that_there_are(folder, tmp_path):
    (folder / "b.txt").write_text("A dog runs.\n\n  Two   dogs.  \n")
    (folder / "sub" / "c.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nCut.\n")
    listing = list_media(folder, captions(tmp_path, {"a.mp4": "A cat."}), keep_all=True)
    assert {point.key: [segment.text for segment in point.segments] for point in listing.datapoints} == {
        "a": ["A cat."],
        "b": ["A dog runs.", "Two dogs."],
        "c": ["Cut."],
    }
    (folder / "b.txt").unlink()
    listing = list_media(folder, captions(tmp_path, {"a.mp4": "A cat."}), keep_all=True)
    assert len(listing.recordings) == 3
    assert not listing.unused


def test_nothing_to_do_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no video, sound or image"):
        list_media(tmp_path)
    with pytest.raises(FileNotFoundError):
        list_media(tmp_path / "gone")
