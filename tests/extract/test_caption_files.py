import json

import pytest

from crossclr.extract.caption_files import read_captions, read_subtitles, subtitles_in
from crossclr.extract.segments import Segment


def read(tmp_path, content, name="captions.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_captions(path)


def test_sentences_by_file(tmp_path):
    first, second, third = read(
        tmp_path,
        {"a.mp4": "a  cat\n", "b.mp4": ["a dog", "an animal"], "c": {"captions": ["x"], "split": "val"}},
    )
    assert (first.file, first.segments, first.split) == ("a.mp4", (Segment("a cat"),), None)
    assert [segment.text for segment in second.segments] == ["a dog", "an animal"]
    assert (third.split, third.segments) == ("val", (Segment("x"),))


def test_coots_meta_file(tmp_path):
    segments = [{"text": "cut", "start_sec": 1, "stop_sec": 2.5}, {"text": "stir", "start_sec": 3, "stop_sec": 4}]
    content = {"x_val": {"data_key": "x", "duration_sec": 9, "split": "val_1", "segments": segments}}
    (found,) = read(tmp_path, content)
    assert (found.key, found.file, found.split) == ("x_val", "x", "val_1")
    assert found.segments == (Segment("cut", 1.0, 2.5), Segment("stir", 3.0, 4.0))


def test_activitynet_captions(tmp_path):
    content = {"v_1": {"duration": 9.0, "timestamps": [[0, 4.5], [4, 9]], "sentences": ["He cuts.", " Then stirs."]}}
    (found,) = read(tmp_path, content)
    assert found.segments == (Segment("He cuts.", 0.0, 4.5), Segment("Then stirs.", 4.0, 9.0))


def test_rows_of_the_same_file_are_its_segments(tmp_path):
    rows = [
        {"video": "a.mp4", "start": 0, "end": "0:02", "caption": "cut", "split": "train"},
        {"video": "b.mp4", "caption": "a dog"},
        {"video": "a.mp4", "start": 2, "end": 3, "caption": "stir"},
    ]
    a, b = read(tmp_path, rows)
    assert (a.file, a.split, a.segments) == ("a.mp4", "train", (Segment("cut", 0.0, 2.0), Segment("stir", 2.0, 3.0)))
    assert b.segments == (Segment("a dog"),)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_tables(tmp_path, delimiter):
    lines = [
        ["File", "start", "stop", "text"],
        ["a.mp4", "1", "2", "cut it"],
        ["b.mp4", "", "", "stir"],
        ["c.mp4", "", "", ""],
    ]
    text = "\ufeff" + "\r\n".join(delimiter.join(line) for line in lines)
    a, b, c = read(tmp_path, text, "t.csv")
    assert (a.segments, b.segments, c.segments) == ((Segment("cut it", 1.0, 2.0),), (Segment("stir"),), ())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "JSON"),
        ("3", "object or a list"),
        ({"a": 3}, "entry 'a'"),
        ({"a": {"segments": [{"start": 1}]}}, "entry 'a'"),
        ({"a": [""]}, "non-empty string"),
        ({"a": {"segments": [{"text": "x", "start": "soon", "stop": 2}]}}, "not a time"),
        ([{"text": "x"}], "entry 0 names no file"),
        ([{"file": "f", "text": "x", "start": "soon"}], "entry 0"),
    ],
)
def test_faults_name_the_entry(tmp_path, content, words):
    with pytest.raises(ValueError, match=words):
        read(tmp_path, content)


def test_other_columns_are_fields(tmp_path):
    (tmp_path / "c.csv").write_text("file,text,Place,year,split\na.mp4,x,Rome,2010,val\na.mp4,y,,2011,val\n")
    (entry,) = read_captions(tmp_path / "c.csv")
    assert [segment.fields for segment in entry.segments] == [{"place": "Rome", "year": "2010"}, {"year": "2011"}]
    content = {"a": {"captions": ["x"], "place": "Rome", "tags": ["no text"], "duration_sec": 3}}
    (tmp_path / "c.json").write_text(json.dumps(content))
    (entry,) = read_captions(tmp_path / "c.json")
    assert entry.segments[0].fields == {"place": "Rome"}


SRT = """1
00:00:01,000 --> 00:00:02,500
<i>Cut</i> the {\\an8}onion
into pieces.

2
00:00:03,000 --> 00:00:04,000 X1:40 X2:600
- Fish &amp; chips

3
00:00:05,000 --> 00:00:06,000

"""
VTT = """WEBVTT - a film

NOTE nobody reads
this

STYLE
::cue { color: red }

intro
00:01.000 --> 00:02.500 align:start position:10%
<v Ann>Cut the <c.loud>onion</c>

01:00:03.000 --> 01:00:04.000
Peel it.
"""


def test_srt(tmp_path):
    path = tmp_path / "a.srt"
    path.write_bytes(SRT.replace("\n", "\r\n").encode("utf-8-sig"))
    assert read_subtitles(path) == [
        Segment("Cut the onion into pieces.", 1.0, 2.5),
        Segment("- Fish & chips", 3.0, 4.0),
    ]


def test_vtt(tmp_path):
    (tmp_path / "a.vtt").write_text(VTT)
    assert read_subtitles(tmp_path / "a.vtt") == [
        Segment("Cut the onion", 1.0, 2.5),
        Segment("Peel it.", 3603.0, 3604.0),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings(tmp_path, encoding):
    (tmp_path / "a.srt").write_bytes("1\n00:00:00,000 --> 00:00:01,000\ncafé\n".encode(encoding))
    assert read_subtitles(tmp_path / "a.srt")[0].text == "café"


def test_no_cue_is_a_fault(tmp_path):
    (tmp_path / "a.srt").write_text("these are no subtitles")
    with pytest.raises(ValueError, match="no cue"):
        read_subtitles(tmp_path / "a.srt")


def test_which_subtitles_belong_to_which_video(tmp_path):
    for name in ("a.srt", "a.vtt", "b.de.srt", "b.en.vtt", "c.en.srt", "c.srt", "d.mp4"):
        (tmp_path / name).write_text("x")
    found = {stem: path.name for stem, path in subtitles_in(tmp_path).items()}
    assert (found["a"], found["b"], found["c"]) == ("a.vtt", "b.de.srt", "c.srt")
    assert "d" not in found
