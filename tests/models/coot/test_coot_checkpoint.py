from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from crossclr.data.batch import Inputs, Ragged
from crossclr.models import import_coot
from crossclr.models.coot import NETWORKS

Fixture = dict[str, Any]
ALL = {"clip/video", "video/video", "context/video", "clip/text", "video/text", "context/text"}
THEIRS = ("sent_emb", "clip_emb", "par_context", "vid_context", "par_emb", "vid_emb")  # in the order of sorted(ALL)


def ragged(batch: Any, name: str) -> Ragged:
    """Sequences of COOT's padded arrays."""
    rows = zip(batch[f"{name}_feat"], batch[f"{name}_feat_len"], strict=True)
    return Ragged.from_list([torch.as_tensor(values[:length]) for values, length in rows])


def differences(model: Any, batch: Any, expected: dict[str, Any]) -> dict[str, float]:
    out = {}
    for modality, clips, whole in (("video", "clip", "vid"), ("text", "sent", "par")):
        inputs = Inputs(ragged(batch, clips), ragged(batch, whole))
        with torch.no_grad():
            levels = model.encode_modality(modality, inputs, torch.as_tensor(batch[f"{clips}_num"]))
        out |= {f"{level}/{modality}": rows for level, rows in levels.items()}
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


def test_old_layout_and_module_prefix(coot_fixture: Fixture) -> None:
    def old(key: str) -> str:
        key = key.replace("norm_input.", "input_norm.").replace("input_fc.mlp.", "input_fc.")
        return "module." + key.replace("pooler.pools.0.", "pooler.")

    state = [{old(k): v for k, v in coot_fixture["state"][name].items()} for name in NETWORKS]
    found = differences(import_coot(state), coot_fixture["input"], coot_fixture["output"])
    assert max(found.values()) < 1e-5, found


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
