from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av", reason="needs crossclr[experts]")

from crossclr.extract.decoding import End, decode, probe
from crossclr.extract.media import Frame, MediaError, Sound
from tests.support.media import BLUE, GREEN, RATE, RED, WHITE, dominant, tone, write_video, write_wav


def frames_of(path, *rates):
    events = list(decode(path, rates))
    assert isinstance(events[-1], End)
    return events[-1], [[e for e in events[:-1] if e.grid == grid] for grid in range(len(rates))]


def sound_of(path, rate=RATE, pictures=()):
    return np.concatenate([e.samples for e in decode(path, pictures, [rate]) if isinstance(e, Sound)])


def test_frames_lie_on_even_times_and_one_pass_serves_several_rates(tmp_path):
    path = write_video(tmp_path / "a.mp4", [RED] * 10 + [GREEN] * 10 + [BLUE] * 10)
    end, (slow, fast) = frames_of(path, 1.0, 10.0)
    assert end.duration == pytest.approx(3.0)
    assert [dominant(frame.image) for frame in slow] == [0, 1, 2]
    assert [frame.number for frame in slow] == [0, 1, 2]
    assert [dominant(frame.image) for frame in fast] == [0] * 10 + [1] * 10 + [2] * 10


def test_a_changing_frame_rate_shows_what_a_player_would(tmp_path):
    # ten frames in the first second, then one frame for each of two seconds
    times = [n / 10 for n in range(10)] + [1.0, 2.0, 3.0]
    path = write_video(tmp_path / "a.mkv", [RED] * 10 + [GREEN, BLUE, RED], times=times)
    _, (found,) = frames_of(path, 4.0)
    colours = [dominant(frame.image) for frame in found]
    assert colours[:12] == [0] * 4 + [1] * 4 + [2] * 4
    same = [found[index].image is found[index + 1].image for index in (4, 5, 6)]
    assert same == [True] * 3  # one frame, one conversion


@pytest.mark.parametrize(("rotation", "corner"), [(0, (0, 0)), (90, (-1, 0)), (180, (-1, -1)), (-90, (0, -1))])
def test_rotation_flags_are_followed(tmp_path, rotation, corner):
    def mark(number, pixels):
        pixels[:24, :24] = WHITE
        return pixels

    path = write_video(tmp_path / "a.mp4", [(20, 20, 60)] * 3, size=(96, 64), rotation=rotation, picture=mark)
    _, (found,) = frames_of(path, 5.0)
    picture = found[0].image
    assert picture.shape == ((64, 96, 3) if rotation % 180 == 0 else (96, 64, 3))
    corners = {(y, x): picture[8 if y == 0 else -8, 8 if x == 0 else -8].mean() for y in (0, -1) for x in (0, -1)}
    assert max(corners, key=corners.get) == corner


def test_a_start_time_is_taken_off(tmp_path):
    path = write_video(tmp_path / "a.mkv", [RED] * 10 + [GREEN] * 10, start=5.0)
    end, (found,) = frames_of(path, 1.0)
    assert end.duration == pytest.approx(2.0, abs=0.11)
    assert [dominant(frame.image) for frame in found] == [0, 1]


def test_a_video_of_one_frame_has_one_picture(tmp_path):
    path = write_video(tmp_path / "a.mp4", [GREEN], rate=25)
    _, (found,) = frames_of(path, 1.0)
    assert [dominant(frame.image) for frame in found] == [1]


def test_sound_is_one_channel_at_the_rate_asked(tmp_path):
    path = write_wav(tmp_path / "a.wav", tone(1.0, 440, 44100), 44100)
    found = sound_of(path)
    assert len(found) == pytest.approx(RATE, abs=40)
    spectrum = np.abs(np.fft.rfft(found[:RATE], RATE))
    assert spectrum.argmax() == pytest.approx(440, abs=1)
    assert np.abs(found).max() == pytest.approx(0.3, abs=0.02)
    media = probe(path)
    assert (media.images, media.sound) == (False, True)
    assert media.duration == pytest.approx(1.0)


def test_pictures_and_sound_come_in_one_pass(tmp_path):
    path = write_video(tmp_path / "a.mp4", [RED] * 20, sound=tone(2.0, 300))
    kinds = {type(event) for event in decode(path, [1.0], [RATE])}
    assert kinds == {Frame, Sound, End}
    assert len(sound_of(path, pictures=[1.0])) == pytest.approx(2 * RATE, abs=2100)


def test_what_is_missing_is_said(tmp_path):
    silent = write_video(tmp_path / "a.mp4", [RED] * 5)
    assert not probe(silent).sound
    with pytest.raises(MediaError, match="no sound"):
        list(decode(silent, [], [RATE]))
    with pytest.raises(MediaError, match="no images"):
        list(decode(write_wav(tmp_path / "a.wav", tone(0.2)), [1.0]))


def test_damaged_files_are_refused(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, 5000, dtype=np.uint8).tobytes()
    (tmp_path / "noise.mp4").write_bytes(noise)
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "noise.png").write_bytes(noise)
    for name in ("noise.mp4", "empty.mp4", "noise.png", "absent.mp4"):
        with pytest.raises(MediaError, match="it cannot be"):
            list(decode(tmp_path / name, [1.0]))
        with pytest.raises(MediaError):
            probe(tmp_path / name)


def test_half_a_file_is_damaged(tmp_path):
    rng = np.random.default_rng(0)

    def noise(number, pixels):
        return rng.integers(0, 255, pixels.shape, dtype=np.uint8)

    whole = write_video(tmp_path / "a.mkv", [RED] * 100, picture=noise)
    (tmp_path / "half.mkv").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(MediaError, match="damaged"):
        list(decode(tmp_path / "half.mkv", [1.0]))


def test_pictures_last_a_second_and_are_turned_upright(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, :20] = RED
    exif = image.Exif()
    exif[0x0112] = 6  # to be shown turned clockwise by a quarter
    image.fromarray(pixels).save(tmp_path / "a.jpg", exif=exif, quality=95)
    end, (found,) = frames_of(tmp_path / "a.jpg", 1.0)
    assert end.duration == 1.0
    assert found[0].image.shape == (40, 20, 3)
    assert dominant(found[0].image[:15]) == 0
    assert probe(tmp_path / "a.jpg").images


def test_a_text_that_names_other_files_is_no_video(tmp_path):
    write_video(tmp_path / "good.mp4", [RED] * 5)
    playlists = {
        "x.mp4": "ffconcat version 1.0\nfile good.mp4\n",
        "y.mp4": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\ngood.mp4\n#EXT-X-ENDLIST\n",
    }
    for name, content in playlists.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(MediaError, match="it cannot be opened"):
            list(decode(tmp_path / name, [1.0]))
        with pytest.raises(MediaError, match="it cannot be opened"):
            probe(tmp_path / name)


def test_a_file_name_is_never_an_address(tmp_path, monkeypatch):
    write_video(tmp_path / "good.ts", [RED] * 5)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MediaError, match="it cannot be opened"):
        list(decode(Path("concat:good.ts|good.ts"), [1.0]))


def test_long_gaps_repeat_a_frame_and_endless_ones_are_refused(tmp_path):
    path = write_video(tmp_path / "a.mkv", [RED, GREEN, BLUE], times=[0, 1, 3600])
    end, (found,) = frames_of(path, 1.0)
    assert (len(found), end.duration) == (3600, pytest.approx(3600.1))
    assert len({id(frame.image) for frame in found}) == 2  # the last one is shown for less than half a second
    path = write_video(tmp_path / "b.mkv", [RED, GREEN, BLUE], times=[0, 1, 30 * 3600])
    with pytest.raises(MediaError, match=r"its time stamps reach 30 hours, .* up to 24 hours"):
        frames_of(path, 1.0)


def test_a_sound_that_starts_late_is_silent_in_small_blocks(tmp_path):
    samples = [event.samples for event in late_sound(tmp_path, 100.0) if isinstance(event, Sound)]
    assert sum(map(len, samples)) == pytest.approx(101 * RATE, abs=3000)
    assert max(map(len, samples)) <= 10 * RATE
    with pytest.raises(MediaError, match="up to 24 hours"):
        late_sound(tmp_path, 100_000.0)


def late_sound(folder, start):
    """A video of one frame whose second of sound starts late, decoded."""
    path = write_video(folder / "late.mkv", [RED], sound=tone(1.0), sound_start=start)
    return list(decode(path, [], [RATE]))
