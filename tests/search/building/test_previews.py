"""Previews of images, videos and sounds: what they show, and that each is made once."""

import io
import math
import struct
import wave

import numpy as np
import pytest
from PIL import Image

from crossclr.search import previews
from crossclr.search.items import Item, Previews
from crossclr.search.previews import make_preview, make_previews, thumbnail
from crossclr.search.results import Hit, group_hits
from crossclr.search.run_items import EmbeddedItems
from tests.support.media import write_video


def opened(content):
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """Two seconds of red, two of green, two of blue."""
    colours = [(220, 0, 0)] * 20 + [(0, 200, 0)] * 20 + [(0, 0, 220)] * 20
    return write_video(tmp_path_factory.mktemp("film") / "film.avi", colours, size=(640, 480))


@pytest.mark.parametrize(("start", "stop", "channel"), [(None, None, 1), (0.0, 2.0, 0), (4.0, 6.0, 2)])
def test_a_video_shows_the_middle_of_its_clip(film, start, stop, channel):
    pixels = opened(make_preview(film, start, stop))
    assert pixels.shape == (240, 320, 3)
    assert pixels.reshape(-1, 3).mean(0).argmax() == channel


def test_a_sound_shows_its_waveform(tmp_path):
    path = tmp_path / "sound.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        loud = [int(20000 * math.sin(place / 3)) for place in range(8000)]
        file.writeframes(struct.pack(f"<{2 * len(loud)}h", *[0] * len(loud), *loud))
    dark = (opened(make_preview(path))[:, :, 0] < 128).sum(0)  # height of the line in each column
    assert dark[:150].max() <= 2  # a second of silence
    assert dark[170:].mean() > 50


def test_what_cannot_be_shown_gives_none(tmp_path):
    (tmp_path / "bad.mp4").write_bytes(b"noise")
    (tmp_path / "notes.txt").write_text("words")
    for name in ("bad.mp4", "notes.txt", "absent.png"):
        assert make_preview(tmp_path / name) is None


def test_previews_are_made_once_and_again_when_the_file_changes(tmp_path, monkeypatch):
    path = tmp_path / "red.png"
    Image.new("RGB", (900, 600), "red").save(path)
    item = Item(0, "a/red", "a", "red", media="image", file=str(path))
    found = [EmbeddedItems([item], np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32))]
    made = []
    monkeypatch.setattr(previews, "make_preview", lambda *place: made.append(place) or make_preview(*place))
    assert make_previews(tmp_path, found) == 0
    assert make_previews(tmp_path, found) == 0
    assert len(made) == 1
    Image.new("RGB", (300, 600), "blue").save(path)
    make_previews(tmp_path, found)
    assert len(made) == 2
    pixels = opened(Previews(tmp_path).get(item))
    assert pixels.shape == (240, 120, 3)
    assert pixels.reshape(-1, 3).mean(0).argmax() == 2
    assert Previews(tmp_path / "nowhere").get(item) is None


def test_versions_of_a_photo_look_the_same_and_others_do_not():
    """Smaller, recompressed and brighter versions against 40 other pictures of the same kind."""
    rng = np.random.default_rng(0)

    def content(picture, **options):
        file = io.BytesIO()
        picture.save(file, "JPEG", **options)
        return file.getvalue()

    pictures = []
    for _ in range(40):  # smooth random fields: as alike as pictures without a subject can be
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        pictures.append(coarse.resize((320, 240), Image.Resampling.BICUBIC))
    contents = [content(picture, quality=90) for picture in pictures]
    versions = [content(picture.resize((150, 112)), quality=50) for picture in pictures]
    versions += [content(picture.point(lambda value: min(255, value + 12)), quality=70) for picture in pictures]
    looks = {number: thumbnail(one) for number, one in enumerate([*contents, *versions])}
    hits = [Hit(Item(n, f"image/{n}", "image", str(n), media="image", file=f"/{n}.jpg"), 1 - n / 1000) for n in looks]
    things = group_hits(hits, 200, looks)
    assert [(thing.best.item.id, thing.copies) for thing in things] == [(number, 2) for number in range(40)]
