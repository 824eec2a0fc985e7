import pytest

from crossclr.extract.caption_files import Segment, read_subtitles, subtitles_in

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
