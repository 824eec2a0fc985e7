"""Clips that browsers do not play become MP4 files, within bounds and once."""

import os
import threading

import pytest

from crossclr.extract.media import MediaError
from crossclr.search import previews
from crossclr.search.items import Item
from crossclr.search.previews import BusyError, ConvertedClips
from tests.support.media import BLUE, GREEN, RED, dominant, tone, write_video

av = pytest.importorskip("av", reason="needs crossclr[experts]")


def item(path, start=None, stop=None):
    return Item(0, "video/x", "video", "x", media="video", file=str(path), start=start, stop=stop)


def decoded(path):
    with av.open(str(path)) as container:
        streams = {stream.type: stream.codec_context.name for stream in container.streams}
        frames = [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    return streams, frames


@pytest.mark.parametrize("name", ["film.avi", "film.mkv"])
def test_the_span_of_a_clip_with_its_sound(tmp_path, name):
    film = write_video(tmp_path / name, [RED] * 20 + [GREEN] * 20 + [BLUE] * 20, size=(960, 720), sound=tone(6.0))
    clips = ConvertedClips(tmp_path)
    streams, frames = decoded(clips.get(item(film, 2.0, 4.0)))
    assert streams == {"video": "h264", "audio": "aac"}
    assert 18 <= len(frames) <= 21
    assert frames[0][0] == pytest.approx(0.0, abs=0.11)
    assert {dominant(picture) for _, picture in frames} == {1}  # green, and nothing of its neighbours
    assert frames[0][1].shape == (480, 640, 3)


def test_a_turned_video_stands_upright(tmp_path):
    def left_red(number, pixels):
        pixels[:, : pixels.shape[1] // 2] = RED
        return pixels

    film = write_video(tmp_path / "film.mov", [BLUE] * 5, rotation=90, picture=left_red)
    _, frames = decoded(ConvertedClips(tmp_path).get(item(film)))
    picture = frames[0][1]
    assert picture.shape == (64, 48, 3)
    assert dominant(picture[40:]) == 0  # counter-clockwise: the left side lies at the bottom
    assert dominant(picture[:24]) == 2


def test_a_file_is_converted_once_until_it_changes(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(previews, "convert_bounded", lambda *given: calls.append(given) or b"mp4")
    film = tmp_path / "film.avi"
    film.write_bytes(b"one")
    clips = ConvertedClips(tmp_path)
    first = clips.get(item(film, 0.0, 1.0))
    assert (clips.get(item(film, 0.0, 1.0)), len(calls)) == (first, 1)
    assert ConvertedClips(tmp_path).get(item(film, 0.0, 1.0)) == first
    film.write_bytes(b"other")
    assert clips.get(item(film, 0.0, 1.0)) != first
    assert len(calls) == 2


def test_the_oldest_files_go_when_there_are_too_many_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(previews, "convert_bounded", lambda *_: bytes(400))
    film = tmp_path / "film.avi"
    film.touch()
    clips, made = ConvertedClips(tmp_path, most_bytes=1000), []
    for second in range(3):
        made.append(clips.get(item(film, float(second), second + 1.0)))
        os.utime(made[-1], (second, second))
    assert [path.is_file() for path in made] == [False, True, True]


def test_a_file_that_cannot_be_decoded_says_why_and_is_not_tried_again(tmp_path, monkeypatch):
    (tmp_path / "notes.avi").write_text("only words")
    clips = ConvertedClips(tmp_path)
    with pytest.raises(MediaError, match="cannot be opened"):
        clips.get(item(tmp_path / "notes.avi"))
    monkeypatch.setattr(previews, "convert_bounded", lambda *_: pytest.fail("it was tried again"))
    with pytest.raises(MediaError, match="cannot be opened"):
        clips.get(item(tmp_path / "notes.avi"))


def test_few_may_wait(tmp_path, monkeypatch):
    begun, go = threading.Semaphore(0), threading.Event()

    def slow(*_):
        begun.release()
        assert go.wait(30)
        return b"mp4"

    monkeypatch.setattr(previews, "convert_bounded", slow)
    monkeypatch.setattr(previews, "MOST_WAITING", 1)
    film = tmp_path / "film.avi"
    film.touch()
    clips = ConvertedClips(tmp_path)
    thread = threading.Thread(target=clips.get, args=(item(film),))
    thread.start()
    try:
        assert begun.acquire(timeout=30)
        with pytest.raises(BusyError):
            clips.get(item(film, 1.0, 2.0))
    finally:
        go.set()
        thread.join()
