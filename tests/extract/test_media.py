"""Images of any shape, prepared for networks in little memory."""

import numpy as np
import pytest

from crossclr.extract.media import MAX_ASPECT, as_rgb, decode_image, starts_like_image
from crossclr.extract.network_file import Preparation

PIL_Image = pytest.importorskip("PIL.Image", reason="needs crossclr[experts]")


@pytest.mark.parametrize(("size", "kept"), [((900, 1), (32, 1)), ((2, 900), (2, 64)), ((64, 2), (64, 2))])
def test_the_middle_of_a_very_long_image_is_kept(size, kept, tmp_path):
    assert MAX_ASPECT == 32
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    first, top = (size[0] - kept[0]) // 2, (size[1] - kept[1]) // 2
    middle = pixels[top : top + kept[1], first : first + kept[0]]
    PIL_Image.fromarray(pixels).save(tmp_path / "long.png")
    for found in (as_rgb(pixels), as_rgb(PIL_Image.fromarray(pixels)), decode_image(tmp_path / "long.png")):
        np.testing.assert_array_equal(np.asarray(found), middle)


@pytest.mark.parametrize("size", [(6000, 1), (1, 6000), (16_000, 2)])
def test_a_very_long_image_is_prepared_in_little_memory(size):
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    prepared = Preparation(224, 224, (0, 0, 0), (255, 255, 255))(np.zeros((size[1], size[0], 3), np.uint8))
    assert prepared.shape == (3, 224, 224)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB; without a bound, 1 to 10 GB


@pytest.mark.parametrize(("name", "module"), [("red.heic", "pillow_heif"), ("red.avif", "PIL._avif")])
def test_photos_of_phones(name, module, tmp_path):
    pytest.importorskip(module, reason="needs Pillow's plugin")
    if module == "pillow_heif":
        pytest.importorskip(module).register_heif_opener()
    PIL_Image.new("RGB", (60, 40), (200, 30, 30)).save(tmp_path / name)
    image = decode_image(tmp_path / name)
    assert image.shape == (40, 60, 3)
    np.testing.assert_allclose(image.mean((0, 1)), (200, 30, 30), atol=3)
    assert starts_like_image((tmp_path / name).read_bytes()[:16])
