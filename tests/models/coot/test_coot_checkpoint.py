from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch

from crossclr.models import ModelConfig, build_model, export_coot, import_coot
from crossclr.models.coot import NETWORKS

Fixture = dict[str, Any]
ALL = {"clip/video", "video/video", "context/video", "clip/text", "video/text", "context/text"}
THEIRS = ("sent_emb", "clip_emb", "par_context", "vid_context", "par_emb", "vid_emb")  # in the order of sorted(ALL)


def differences(model: Any, batch: Any, expected: dict[str, Any]) -> dict[str, float]:
    with torch.no_grad():
        out = model.encode(batch)
    ours = dict(zip(THEIRS, sorted(ALL), strict=True))
    return {
        ours[name]: float((out[ours[name]] - torch.as_tensor(value)).abs().max()) for name, value in expected.items()
    }


def test_all_six_embeddings_agree_with_coot(coot_fixture: Fixture) -> None:
    found = differences(import_coot(coot_fixture["state"]), coot_fixture["input"], coot_fixture["output"])
    assert set(found) == ALL
    assert max(found.values()) < 1e-5, found


def test_masked_mean(coot_fixture: Fixture) -> None:
    model = import_coot(coot_fixture["state"], global_pool="mean")
    found = differences(model, coot_fixture["input"], coot_fixture["output_masked_mean"])
    assert set(found) == {"video/video", "video/text"}
    assert max(found.values()) < 1e-5, found


def test_tensors_and_masks_do_as_well_as_arrays_and_lengths(coot_fixture: Fixture) -> None:
    batch = {k: torch.as_tensor(v) for k, v in coot_fixture["input"].items() if not k.endswith("_len")}
    state = {n: {k: torch.as_tensor(v) for k, v in net.items()} for n, net in coot_fixture["state"].items()}
    found = differences(import_coot(state), batch, coot_fixture["output"])
    assert max(found.values()) < 1e-5, found


def test_old_layout_and_module_prefix(coot_fixture: Fixture) -> None:
    def old(key: str) -> str:
        key = key.replace("norm_input.", "input_norm.").replace("input_fc.mlp.", "input_fc.")
        return "module." + key.replace("pooler.pools.0.", "pooler.")

    state = [{old(k): v for k, v in coot_fixture["state"][name].items()} for name in NETWORKS]
    found = differences(import_coot(state), coot_fixture["input"], coot_fixture["output"])
    assert max(found.values()) < 1e-5, found


def test_export_gives_the_checkpoint_back(coot_fixture: Fixture) -> None:
    exported = export_coot(import_coot(coot_fixture["state"]))
    assert set(exported) == set(NETWORKS)
    for name, network in coot_fixture["state"].items():
        assert set(exported[name]) == set(network)
        for key, value in network.items():  # by name: some tensors cannot matter to any output
            np.testing.assert_array_equal(exported[name][key].numpy(), value, err_msg=f"{name} {key}")


def test_full_size_round_trip() -> None:
    model = build_model(ModelConfig(), {"video": 512, "text": 1536}, two_level=True)
    again = import_coot(export_coot(model), global_pool="mean")
    assert again.config.encoder_of("video").heads == 8  # type: ignore[union-attr]
    assert again.config.global_encoder.heads == 8
    assert not again.training
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


@pytest.mark.parametrize("change", ["drop network", "extra network", "drop key", "extra key", "shape", "short list"])
def test_faults_are_named(coot_fixture: Fixture, change: str) -> None:
    state: Any = {name: dict(network) for name, network in coot_fixture["state"].items()}
    key = "tf.encoder_layers.0.self_attention_layer.sublayer.key_projection.bias"
    message = key
    if change == "drop network":
        message = "net_text_local"
        del state[message]
    elif change == "extra network":
        message = "net_audio"
        state[message] = {}
    elif change == "drop key":
        del state["net_video_global"][key]
    elif change == "extra key":
        message = "tf.surprise"
        state["net_video_local"][message] = np.zeros(1)
    elif change == "shape":
        message = "norm_input.bias"
        state["net_video_local"][message] = np.zeros(3, np.float32)
    else:
        message, state = "list of 4", list(state.values())[:3]
    with pytest.raises(ValueError, match=message):
        import_coot(state)


def test_only_what_coot_knows_is_exported() -> None:
    model = build_model(ModelConfig(dim=16, output_dim=4), {"video": 3, "text": 3}, two_level=True)
    with pytest.raises(ValueError, match="output_dim"):
        export_coot(model)


@pytest.mark.parametrize("missing", ["clip_feat", "sent_num", "vid_feat_len"])
def test_an_incomplete_batch_is_named(coot_fixture: Fixture, missing: Literal["clip_feat", "sent_num"]) -> None:
    batch = {k: v for k, v in coot_fixture["input"].items() if k != missing and not k.endswith("_mask")}
    wanted = "vid_feat_mask" if missing == "vid_feat_len" else missing
    with pytest.raises(ValueError, match=wanted):
        import_coot(coot_fixture["state"]).encode(batch)
