"""Files from strangers: what is right is decoded as usual, and what is wrong is refused in time."""

import gzip
import io
import os
import struct
import tempfile
import time
import wave
import zlib

import numpy as np
import pytest

from crossclr.extract.decoding import Bounds, End, decode, decode_bounded
from crossclr.extract.media import MediaError
from tests.support.media import write_video

pytest.importorskip("av", reason="needs crossclr[experts]")


def held(content):
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    file.write(content)
    return file


def png(width, height, content=b""):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def same(found, expected):
    assert type(found) is type(expected)
    for name, value in vars(expected).items():
        np.testing.assert_array_equal(getattr(found, name), value)


def test_a_video_gives_the_same_events_as_the_decoder_itself(tmp_path):
    sound = np.sin(np.arange(32000) / 20).astype(np.float32)
    path = write_video(tmp_path / "a.mp4", [(200, 0, 0)] * 10 + [(0, 0, 200)] * 10, sound=sound)
    expected = list(decode(path, [2.0], [16000]))
    with path.open("rb") as file:
        found = list(decode_bounded(file, [2.0], [16000]))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        same(one, other)


def test_only_the_first_seconds_are_decoded(tmp_path):
    path = write_video(tmp_path / "long.mp4", [(9, 9, 9)] * 60, rate=10)
    with path.open("rb") as file:
        events = list(decode_bounded(file, [1.0], bounds=Bounds(seconds=2)))
    assert events[-1] == End(2.0)
    assert len(events) == 3


def wav(seconds):
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(2 * 16000 * seconds))
    return content.getvalue()


PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
HOSTILE = {
    "empty": b"",
    "text": b"just words " * 1000,
    "script": b"<html><script>alert(1)</script>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "playlist": PLAYLIST,
    "concat": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "image header, then a playlist": b"\x89PNG" + PLAYLIST,
    "huge dimensions": png(60_000, 60_000, zlib.compress(bytes(1000))),
    "pixel bomb": png(20_000, 20_000, zlib.compress(bytes(20_000 * 2501), 9)),
    "zip bomb": gzip.compress(bytes(30_000_000)),
    "zip": b"PK\x03\x04" + bytes(1000),
    "program": b"\x7fELF" + os.urandom(2000),
    "noise": np.random.default_rng(0).bytes(100_000),
    "movie header, then noise": b"\x00\x00\x00\x18ftypisom" + np.random.default_rng(1).bytes(50_000),
    "sound without pictures": wav(1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_one_line(name):
    with held(HOSTILE[name]) as file, pytest.raises(MediaError) as error:
        list(decode_bounded(file, [1.0]))
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)
    assert "passwd" not in str(error.value)


def test_a_file_that_takes_too_long_is_ended(tmp_path):
    with held(wav(600)) as file:
        start = time.monotonic()
        with pytest.raises(MediaError, match="longer than"):
            list(decode_bounded(file, sound_rates=[16000], bounds=Bounds(seconds=600, wall_seconds=0.05)))
        assert time.monotonic() - start < 10


def test_memory_is_bounded():
    image = png(7_000, 7_000, zlib.compress(bytes(7_000 * 876), 9))
    with held(image) as file, pytest.raises(MediaError, match="memory"):
        list(decode_bounded(file, [1.0], bounds=Bounds(memory=600 * 2**20)))
