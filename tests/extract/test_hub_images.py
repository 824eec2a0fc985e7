import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs crossclr[experts]")

from crossclr.extract import ExpertError, load  # noqa: E402

FRAMES = np.random.default_rng(0).integers(0, 255, (5, 40, 56, 3), dtype=np.uint8)


def test_a_vision_transformer_gives_the_mean_of_its_tokens(models):
    expert = load(f"appearance:{models['vit']}", batch_size=2)
    network = transformers.AutoModel.from_pretrained(models["vit"]).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(models["vit"])
    with torch.inference_mode():
        outputs = network(**processor(images=list(FRAMES), return_tensors="pt"))
    rows = expert(FRAMES)
    assert (rows.shape, rows.dtype, expert.dim) == ((5, 16), np.float32, 16)
    np.testing.assert_allclose(rows, outputs.last_hidden_state.mean(1).numpy(), atol=1e-5)
    first = load(f"appearance:{models['vit']}", layer="first")(FRAMES)
    np.testing.assert_allclose(first, outputs.last_hidden_state[:, 0].numpy(), atol=1e-5)
    pooled = load(f"appearance:{models['vit']}", layer="pooled")(FRAMES)
    np.testing.assert_allclose(pooled, outputs.pooler_output.numpy(), atol=1e-5)


def test_a_convolutional_network_gives_the_mean_of_its_map(models):
    network = transformers.AutoModel.from_pretrained(models["resnet"]).eval()
    expert = load(f"appearance:{models['resnet']}")
    inputs = torch.stack([expert.prepare(frame) for frame in FRAMES])
    with torch.inference_mode():
        expected = network(inputs, output_hidden_states=True)
    np.testing.assert_allclose(expert(FRAMES), expected.last_hidden_state.mean((2, 3)).numpy(), atol=1e-5)
    earlier = load(f"appearance:{models['resnet']}", layer=-2)
    np.testing.assert_allclose(earlier(FRAMES), expected.hidden_states[-2].mean((2, 3)).numpy(), atol=1e-5)
    assert earlier.dim == 8


def test_origin_says_model_layer_rate_and_a_digest_of_the_weights(models, tmp_path):
    import shutil

    origin = load(f"vit=appearance:{models['vit']}", rate=2).origin()
    assert (origin.expert, origin.model, origin.layer, origin.rate) == ("vit", models["vit"], "mean", 2.0)
    shutil.copytree(models["vit"], tmp_path / "other")
    weights = tmp_path / "other" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert load(f"appearance:{tmp_path / 'other'}").origin().version != origin.version


@pytest.mark.parametrize(("layer", "words"), [("first", "no first one"), ("nonsense", "no layer"), ("99", "no layer")])
def test_layers_that_are_not_there(models, layer, words):
    with pytest.raises(ExpertError, match=words):
        load(f"appearance:{models['resnet']}", layer=layer)


def test_a_model_that_is_nowhere(tmp_path):
    with pytest.raises(ExpertError, match="there is no folder"):
        load(f"appearance:{tmp_path / 'nothing'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExpertError, match="cannot be loaded"):
        load(f"appearance:{tmp_path / 'empty'}")


def test_pictures_of_the_wrong_kind(models):
    expert = load(f"appearance:{models['vit']}")
    with pytest.raises(TypeError, match=r"height, width, 3.*float64"):
        expert([np.zeros((4, 4, 3))])


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_a_joint_model_gives_its_image_embedding(models, name):
    expert = load(f"appearance={models[name]}", batch_size=2)
    network = transformers.AutoModel.from_pretrained(models[name]).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(models[name])
    with torch.inference_mode():
        expected = network.get_image_features(**processor(images=list(FRAMES), return_tensors="pt")).pooler_output
    assert expert.dim == load(f"text={models[name]}").dim  # images and texts share a space
    np.testing.assert_allclose(expert(FRAMES), expected.numpy(), atol=1e-5)


def test_a_model_without_images_is_refused(models):
    with pytest.raises(ExpertError, match="cannot be loaded"):
        load(f"appearance={models['bert']}")
