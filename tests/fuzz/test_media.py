"""Broken images, videos and sound: decoded, or refused with one line."""

import random

import numpy as np
import pytest

from crossclr.extract.decoding import decode, probe
from crossclr.extract.media import check_image, read_image
from tests.fuzz.verdicts import broken_bytes, judge, share
from tests.support.media import write_video

BATCHES, CASES = share(120, 4)


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
    return check_image(path), np.asarray(read_image(path)).shape


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
