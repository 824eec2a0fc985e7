import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs crossclr[experts]")

from crossclr.extract import ExpertError, load  # noqa: E402
from crossclr.extract.image_experts import class_weighted  # noqa: E402

RNG = np.random.default_rng(0)
WIDE = RNG.integers(0, 255, (3, 30, 60, 3), dtype=np.uint8)
TALL = RNG.integers(0, 255, (2, 60, 30, 3), dtype=np.uint8)


def naive(scores, states, threshold):
    rows = []
    for picture_scores, picture_states in zip(scores.tolist(), states.tolist(), strict=True):
        total, row = 0.0, [0.0] * len(picture_states[0])
        for score, state in zip(picture_scores, picture_states, strict=True):
            if score > threshold:
                total += score
                row = [value + score * part for value, part in zip(row, state, strict=True)]
        rows.append([value / total if total else 0.0 for value in row])
    return rows


def test_pooling_against_a_loop():
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(6, 5, generator=generator)
    scores[2] = 0.1
    states = torch.randn(6, 5, 3, generator=generator)
    found = class_weighted(scores, states, 0.7)
    np.testing.assert_allclose(found.numpy(), naive(scores, states, 0.7), atol=1e-6)
    assert not found[2].any()


def test_rows_are_the_boxes_weighted_by_class(models):
    expert = load(f"object:{models['detr']}", threshold=0.2, batch_size=4)
    network = transformers.AutoModelForObjectDetection.from_pretrained(models["detr"]).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(models["detr"])
    expected = []
    for picture in [*WIDE, *TALL]:
        with torch.inference_mode():
            outputs = network(**processor(images=picture, return_tensors="pt"))
        scores = outputs.logits.softmax(2)[..., :-1].amax(2)
        expected += naive(scores, outputs.last_hidden_state, 0.2)
    rows = expert([*WIDE, *TALL])  # two sizes in one batch
    assert rows.shape == (5, 16)
    np.testing.assert_allclose(rows, expected, atol=1e-4)
    assert np.abs(rows).sum() > 0


def test_no_sure_box_is_a_row_of_zeros(models):
    expert = load(f"object:{models['detr']}")  # 0.7, which random weights never reach
    assert (expert.threshold, expert.needs.kind) == (0.7, "boxes")
    assert not expert(WIDE).any()


def test_threshold_is_checked(models):
    with pytest.raises(ExpertError, match="threshold"):
        load(f"object:{models['detr']}", threshold=1.5)
