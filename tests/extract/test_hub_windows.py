import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs crossclr[experts]")

from crossclr.extract import load  # noqa: E402

FRAMES = np.random.default_rng(0).integers(0, 255, (50, 24, 32, 3), dtype=np.uint8)


def test_windows_of_a_video_model(models):
    expert = load(f"action:{models['videomae']}", batch_size=2)
    needs = expert.needs
    assert (needs.kind, needs.rate, needs.window, needs.stride) == ("windows", 10.0, 32, 16)
    network = transformers.AutoModel.from_pretrained(models["videomae"]).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(models["videomae"])
    expected = []
    for first in (0, 16, 18, 18):  # starts 0, 16, and 32 and 48, which run over the end of 50
        chosen = [FRAMES[first + at] for at in (4, 12, 20, 28)]  # 4 of 32, the centres of quarters
        with torch.inference_mode():
            states = network(**processor(chosen, return_tensors="pt")).last_hidden_state
        expected.append(states[0].mean(0).numpy())
    rows = expert(FRAMES)
    assert rows.shape == (4, 16)
    np.testing.assert_allclose(rows, np.stack(expected), atol=1e-5)
    np.testing.assert_array_equal(rows[2], rows[3])


def test_short_videos_give_one_row(models):
    expert = load(f"action:{models['videomae']}")
    assert expert(FRAMES[:3]).shape == (1, 16)
    np.testing.assert_allclose(expert(FRAMES[:20]), expert(FRAMES[:16]), atol=1e-6)  # the first half of a window
