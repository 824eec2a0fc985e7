import threading

import numpy as np
import pytest

pytest.importorskip("av", reason="needs crossclr[experts]")

from crossclr.extract.decoding import decode
from crossclr.extract.media import Frame
from crossclr.extract.pipeline import Pipeline
from crossclr.extract.recordings import Recording
from tests.support.fake_experts import Colour, Loudness, Motion
from tests.support.media import BLUE, GREEN, RED, tone, write_video, write_wav


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    write_video(folder / "a.mp4", [RED] * 13, sound=tone(1.3))
    write_video(folder / "b.mp4", [GREEN] * 5)
    write_video(folder / "c.mp4", [BLUE] * 30, sound=np.concatenate([tone(1.0), np.zeros(16000, np.float32)]))
    write_wav(folder / "d.wav", tone(0.5))
    (folder / "e.mp4").write_bytes(b"noise")
    return [Recording(path.stem, path) for path in sorted(folder.iterdir())]


def run(recordings, experts, **options):
    return {found.recording.key: found for found in Pipeline(**options).run([(r, experts) for r in recordings])}


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_equal_one_call_for_each_recording(recordings, workers):
    colour, motion, loudness = Colour(), Motion(), Loudness()
    found = run(recordings, [colour, motion, loudness], workers=workers)
    assert sorted(found) == ["a", "b", "c", "d", "e"]
    for key in "abc":
        path = next(r.path for r in recordings if r.key == key)
        pictures = {rate: [e.image for e in decode(path, [rate]) if isinstance(e, Frame)] for rate in (2.0, 10.0)}
        np.testing.assert_array_equal(found[key].rows["colour"], colour(pictures[2.0]))
        np.testing.assert_allclose(found[key].rows["motion"], motion(pictures[10.0]), atol=1e-4)
    assert found["e"].error.startswith("it cannot be opened")
    assert set(found["b"].rows) == {"colour", "motion"}  # no sound track
    assert set(found["d"].rows) == {"loudness"}  # no pictures
    assert [found[key].duration for key in "abcd"] == pytest.approx([1.3, 0.5, 3.0, 0.5], abs=0.01)


def test_sound_has_the_length_of_its_video(recordings):
    found = run(recordings[2:3], [Colour(), Loudness()])["c"]
    loud = found.rows["loudness"][:, 0]
    assert len(loud) == 30  # three seconds, of which the track has two
    assert loud[2:9].min() > 0.1
    assert loud[12:].max() < 0.01


def test_batches_are_filled_across_recordings(recordings):
    colour = Colour()
    found = run(recordings, [colour])
    total = sum(len(item.rows["colour"]) for item in found.values() if not item.error and "colour" in item.rows)
    assert total == 3 + 1 + 6
    assert colour.batches == [4, 4, 2]


def test_progress_counts_every_row(recordings):
    counted = {}
    found = run(
        recordings,
        [Colour(), Motion(), Loudness()],
        progress=lambda name, rows: counted.update({name: counted.get(name, 0) + rows}),
    )
    for name in ("colour", "motion"):
        assert counted[name] == sum(len(item.rows[name]) for item in found.values() if name in item.rows)


def test_a_fault_in_preparing_is_told_of_its_recording_alone(recordings):
    class Picky(Colour):
        def prepare(self, picture):
            if picture.reshape(-1, 3).mean(0).argmax() == 1:
                raise RuntimeError("no green")
            return super().prepare(picture)

    found = run(recordings, [Picky()])
    assert found["b"].error == "RuntimeError: no green"
    assert found["c"].rows["colour"].shape == (6, 3)


def test_leaving_early_ends_the_decoders(recordings):
    before = threading.active_count()
    jobs = Pipeline(workers=2).run([(recordings[2], [Colour(rate=100.0)])] * 20)
    next(jobs)
    jobs.close()
    assert threading.active_count() == before


class Counting:
    """Counts what an expert is given to encode."""

    count = 0

    def encode(self, inputs):
        self.count += len(inputs) if isinstance(inputs, list) else 1
        return super().encode(inputs)


def test_repeated_images_windows_and_silence_are_encoded_once(tmp_path):
    images = type("Images", (Counting, Colour), {})(rate=1.0)
    windows = type("Windows", (Counting, Motion), {})(rate=1.0)
    sound = type("Sounds", (Counting, Loudness), {})()
    hour = write_video(tmp_path / "a.mkv", [RED, GREEN, BLUE], times=[0, 1, 3600], sound=tone(1.0))
    found = run([Recording("a", hour)], [images, windows, sound])["a"]
    frames = [event.image for event in decode(hour, [1.0]) if isinstance(event, Frame)]
    assert found.rows["colour"].argmax(1).tolist() == [0, *[1] * 3599]
    np.testing.assert_allclose(found.rows["motion"], Motion(rate=1.0)(frames), atol=1e-4)
    assert found.rows["loudness"][:9].min() > 0.1
    assert found.rows["loudness"][12:].max() == 0
    assert len(found.rows["loudness"]) == 36_001
    assert images.count == 2
    assert windows.count <= 3
    assert sound.count <= 5
