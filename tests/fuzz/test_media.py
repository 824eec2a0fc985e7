"""Broken images, videos and sound: decoded, or refused with one line."""

import random

import numpy as np
import pytest

from crossclr.extract.decoding import decode, probe
from crossclr.extract.media import MAX_HOURS, Frame, Sound, check_image, decode_image
from crossclr.extract.network_file import IMAGENET, Preparation
from tests.fuzz.verdicts import broken_bytes, judge, share
from tests.support.media import tone, write_video

BATCHES, CASES = share(120, 4)
SHAPES, SIDES = share(40, 2)
STAMPED, STAMPS = share(40, 2)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    image = pytest.importorskip("PIL.Image", reason="needs crossclr[experts]")
    folder = tmp_path_factory.mktemp("media")
    pixels = np.random.default_rng(0).integers(0, 255, (32, 48, 3), dtype=np.uint8)
    for ending in ("png", "jpg", "webp"):
        image.fromarray(pixels).save(folder / f"x.{ending}")
    write_video(folder / "x.mp4", [(255, 0, 0), (0, 255, 0), (0, 0, 255)] * 4)
    return sorted(folder.iterdir())


def use(path):
    """Everything that extraction reads of a file."""
    if path.suffix == ".mp4":
        return probe(path), sum(1 for _ in decode(path, [2.0]))
    return check_image(path), np.asarray(decode_image(path)).shape


@pytest.mark.parametrize("seed", BATCHES)
def test_damaged_files(files, tmp_path, seed):
    rng = random.Random(seed)
    for path in files:
        judge(lambda path=path: use(path), path.name, must_refuse=False)
        for _ in range(-(-CASES // len(files))):
            case, content = broken_bytes(path.read_bytes(), rng)
            broken = tmp_path / path.name
            broken.write_bytes(content)
            judge(lambda broken=broken: use(broken), f"{path.name}: {case}", True if case.startswith("empty") else None)


@pytest.mark.parametrize("seed", SHAPES)
def test_images_of_any_shape_are_prepared_in_little_memory(tmp_path, seed):
    image = pytest.importorskip("PIL.Image", reason="needs crossclr[experts]")
    resource = pytest.importorskip("resource")
    rng = random.Random(seed)
    ready = Preparation(224, 224, *IMAGENET)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(SIDES):
        area = 10 ** rng.uniform(0, 6)
        width = max(1, min(60_000, round(area ** rng.uniform(0, 1))))
        height = max(1, min(60_000, round(area / width)))
        path = tmp_path / f"x.{rng.choice(['png', 'bmp', 'gif'])}"
        image.new(rng.choice(["RGB", "L", "P", "RGBA"]), (width, height)).convert("P").save(path)
        case = f"{width} x {height}"
        assert judge(lambda path=path: ready(decode_image(path)), case, must_refuse=False).result.shape == (3, 224, 224)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


@pytest.mark.parametrize("seed", STAMPED)
def test_any_time_stamps_give_even_frames_or_one_line(tmp_path, seed):
    rng = random.Random(seed)
    for _ in range(STAMPS):
        times = sorted({round(10 ** rng.uniform(-1, 5.3), 2) for _ in range(rng.randrange(1, 5))} | {0.0})
        start = rng.choice([0.0, 10 ** rng.uniform(0, 5.3)])
        colours = [(9, 9, 9)] * len(times)
        path = write_video(tmp_path / "x.mkv", colours, times=times, codec="ffv1", sound=tone(0.3), sound_start=start)
        case = f"frames at {times}, sound at {start}"
        too_long = max(*times, start) > MAX_HOURS * 3600
        verdict = judge(lambda path=path: tally(path), case, must_refuse=too_long or None)
        if not verdict.refused:
            images, samples = verdict.result
            assert images == pytest.approx(max(times), abs=2), case
            assert samples == pytest.approx(16_000 * (start + 0.3), abs=6_000), case


def tally(path):
    """The number of images, one each second, and of samples."""
    images = samples = 0
    for event in decode(path, [1.0], [16_000]):
        images += isinstance(event, Frame)
        samples += len(event.samples) if isinstance(event, Sound) else 0
    return images, samples
