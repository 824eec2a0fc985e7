from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from crossclr.data.batch import Batch, Inputs, Ragged
from crossclr.models import JointModel, ModelConfig, build_model
from crossclr.models.model_config import GlobalEncoderConfig, MLPEncoderConfig, TransformerEncoderConfig
from tests.models import naive

Maker = Callable[..., Batch]
Pooler = Literal["attention", "max", "mean"]
NAMES = {"clip/video", "video/video", "context/video", "clip/text", "video/text", "context/text"}
DIMS = {"video": 6, "text": 10}
SHAPES = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=4), min_size=1, max_size=5)


def small(pooler: Pooler = "attention", layers: int = 1, dropout: float = 0.0) -> JointModel:
    """A small model with weights large enough for every part to matter."""
    torch.manual_seed(0)
    encoder = TransformerEncoderConfig(heads=2, pooler=pooler, layers=layers, dropout=dropout)
    together = GlobalEncoderConfig(heads=2, layers=layers, dropout=dropout)
    model = build_model(ModelConfig(dim=8, encoder=encoder, global_encoder=together), DIMS, True)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


@pytest.mark.parametrize(("video_dim", "expected"), [(512, 7_011_328), (4096, 8_394_752)])
def test_parameters_of_the_youcook2_setting(video_dim: int, expected: int) -> None:
    model = build_model(ModelConfig(), {"video": video_dim, "text": 1536}, two_level=True)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == expected
    parts = {
        "encoders.video.global_": 1_777_920,
        "encoders.text.local": 1_925_376,
        "encoders.text.global_": 1_777_920,
    }
    for name, count in parts.items():
        assert sum(p.numel() for p in model.get_submodule(name).parameters()) == count


def test_initial_weights() -> None:
    torch.manual_seed(0)
    model = build_model(ModelConfig(dim=64), {"video": 32, "text": 48}, two_level=True)
    for name, parameter in model.named_parameters():
        if name.endswith(".gain"):
            assert bool((parameter == 1).all()), name
        elif "norm" in name:
            assert bool((parameter == 0).all()), name
        else:
            assert float(parameter.detach().abs().max()) <= 0.02, name
            assert float(parameter.detach().std()) == pytest.approx(0.0088, rel=0.5), name


def test_xavier_weights() -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoderConfig(initial_weights="xavier")
    above = GlobalEncoderConfig(initial_weights="xavier")
    config = ModelConfig(dim=64, encoder=encoder, global_encoder=above)
    model = build_model(config, {"video": 32, "text": 48}, two_level=True)
    for name, parameter in model.named_parameters():
        if name.endswith(".gain"):
            assert bool((parameter == 1).all()), name
        elif name.endswith("bias"):
            assert bool((parameter == 0).all()), name
        else:
            wanted = (2 / (parameter.shape[-1] + parameter.shape[-2])) ** 0.5
            assert float(parameter.detach().std()) == pytest.approx(wanted, rel=0.1), name


def test_lsmdc_setting(make_batch: Maker) -> None:
    encoder = TransformerEncoderConfig(heads=16, pooler="max", dropout=0.01)
    config = ModelConfig(dim=768, encoder=encoder, global_encoder=GlobalEncoderConfig(heads=8))
    model = build_model(config, DIMS, two_level=True).eval()
    batch = make_batch([[3], [5]])
    out = model.encode(batch)
    assert {name: tuple(value.shape) for name, value in out.items()} == {
        **dict.fromkeys(("clip/video", "clip/text", "context/video", "context/text"), (2, 768)),
        **dict.fromkeys(("video/video", "video/text"), (2, 1536)),
    }
    # The only clip of a video stands for the whole video where a batch has no context rows.
    alone = model.encode_modality("video", Inputs(batch.inputs["video"].clips), batch.clip_counts)
    torch.testing.assert_close(alone["context"], alone["clip"])


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=SHAPES, pooler=st.sampled_from(["attention", "max", "mean"]), layers=st.integers(1, 2))
def test_values_and_gradients_equal_a_naive_padded_model(
    make_batch: Maker, shapes: list[list[int]], pooler: Pooler, layers: int
) -> None:
    model = small(pooler, layers).double()
    batch = make_batch(shapes, dtype=torch.float64)
    state = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    expected = naive.encode(batch, state, heads=2, kind=pooler)
    got = model(batch)
    assert set(got) == NAMES
    torch.manual_seed(1)
    weights = {name: torch.randn_like(value) for name, value in expected.items()}
    for name, value in got.items():
        torch.testing.assert_close(value, expected[name], atol=1e-10, rtol=1e-10)
    gradients = torch.autograd.grad(sum((got[n] * w).sum() for n, w in weights.items()), list(model.parameters()))
    reference = torch.autograd.grad(sum((expected[n] * w).sum() for n, w in weights.items()), list(state.values()))
    for (name, _), mine, theirs in zip(model.named_parameters(), gradients, reference, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-8, rtol=1e-7, msg=lambda text, name=name: f"{name}: {text}")


def one_video(batch: Batch, index: int) -> Batch:
    """A batch of a single video of another batch."""
    starts = [0, *batch.clip_counts.cumsum(0).tolist()]
    clips = list(range(starts[index], starts[index + 1]))

    def side(whole: Inputs) -> Inputs:
        assert whole.context is not None
        return Inputs(whole.clips.select(clips), whole.context.select([index]))

    return Batch(
        inputs={name: side(rows) for name, rows in batch.inputs.items()},
        present={name: mask[clips] for name, mask in batch.present.items()},
        pooled={name: rows[clips] for name, rows in batch.pooled.items()},
        clip_counts=batch.clip_counts[index : index + 1],
        ids=batch.ids[clips],
        video_ids=batch.video_ids[index : index + 1],
        keys=(batch.keys[index],),
    )


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shapes=SHAPES,
    pooler=st.sampled_from(["attention", "max", "mean"]),
    precision=st.sampled_from([(torch.float32, 1e-5), (torch.float64, 1e-12)]),
    seed=st.integers(0, 5),
)
def test_an_embedding_does_not_depend_on_its_batch(
    make_batch: Maker, shapes: list[list[int]], pooler: Pooler, precision: tuple[torch.dtype, float], seed: int
) -> None:
    dtype, tolerance = precision
    model = small(pooler).to(dtype).eval()
    batch = make_batch(shapes, dtype=dtype, seed=seed)
    together = model.encode(batch)
    alone = [model.encode(one_video(batch, index)) for index in range(len(shapes))]
    for name in NAMES:
        torch.testing.assert_close(
            together[name], torch.cat([part[name] for part in alone]), atol=tolerance, rtol=tolerance
        )


def test_every_layer_feeds_the_next(make_batch: Maker) -> None:
    model = small(layers=2).eval()
    batch = make_batch([[3, 2], [4]])
    before = model.encode(batch)["clip/video"]
    with torch.no_grad():
        model.get_submodule("encoders.video.local.layers.0").get_parameter("expand.weight").add_(0.5)
    assert float((model.encode(batch)["clip/video"] - before).detach().abs().max()) > 1e-3


def test_bfloat16(make_batch: Maker) -> None:
    batch = make_batch([[3, 2], [4, 1, 5]])
    model = small().eval()
    exact = model.encode(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model.train().encode(batch)
        loss = sum(value.float().square().sum() for value in mixed.values())
    loss.backward()  # type: ignore[union-attr]
    half = small().bfloat16().eval().encode(batch)
    for name, value in exact.items():
        assert half[name].dtype == torch.bfloat16
        scale = float(value.detach().abs().max())
        assert float((mixed[name].float() - value).detach().abs().max()) < 0.1 * scale
        assert float((half[name].float() - value).detach().abs().max()) < 0.2 * scale
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_dropout_only_while_training(make_batch: Maker) -> None:
    model, batch = small(dropout=0.3), make_batch([[3, 2], [4]])
    assert not torch.equal(model.train().encode(batch)["video/video"], model.encode(batch)["video/video"])
    assert torch.equal(model.eval().encode(batch)["video/video"], model.encode(batch)["video/video"])
    torch.manual_seed(5)
    first = model.train().encode(batch)["video/video"]
    torch.manual_seed(5)
    assert torch.equal(model.encode(batch)["video/video"], first)


@pytest.mark.parametrize("pooling", ["mean", "max", "mean_max"])
def test_mlp_encoder_pools_sequences(make_batch: Maker, pooling: Literal["mean", "max", "mean_max"]) -> None:
    torch.manual_seed(0)
    encoder = MLPEncoderConfig(sequence_pooling=pooling, blocks=2)
    config = ModelConfig(dim=8, encoder=encoder, output_dim=5)
    model = build_model(config, DIMS, two_level=False).double().eval()
    batch = make_batch([[3], [1], [4], [3]], dtype=torch.float64)
    out = model.encode(batch)
    assert set(out) == {"clip/video", "clip/text"}
    vectors = []
    for rows in batch.inputs["video"].clips.split():
        parts = {"mean": [rows.mean(0)], "max": [rows.max(0).values]}
        vectors.append(torch.cat(parts.get(pooling, parts["mean"] + parts["max"])))
    # A single vector is its own pooled sequence, so feeding pooled vectors must give the same result.
    state = naive.under(dict(model.named_parameters()), "encoders.video")
    x = nn.functional.layer_norm(
        torch.stack(vectors), (len(vectors[0]),), state["local.input_norm.weight"], state["local.input_norm.bias"]
    )
    x = x @ state["local.projection.weight"].T + state["local.projection.bias"]
    for index in range(2):
        block = naive.under(state, f"local.blocks.{index}")
        hidden = nn.functional.layer_norm(x, (8,), block["norm.weight"], block["norm.bias"])
        hidden = nn.functional.gelu(hidden @ block["expand.weight"].T + block["expand.bias"])
        x = x + hidden @ block["contract.weight"].T + block["contract.bias"]
    expected = x @ state["clip_head.weight"].T + state["clip_head.bias"]
    torch.testing.assert_close(out["clip/video"], expected, atol=1e-10, rtol=1e-10)


def test_mlp_takes_single_vectors() -> None:
    torch.manual_seed(0)
    config = ModelConfig(dim=4, encoder=MLPEncoderConfig(), encoders={"video": {"sequence_pooling": "mean_max"}})
    model = build_model(config, {"video": 3, "text": 3}, two_level=False).eval()
    vectors = torch.randn(5, 3)
    single = model.encode_modality("video", Inputs(Ragged(vectors, torch.ones(5, dtype=torch.int64))))["clip"]
    repeated = model.encode_modality("video", Inputs(Ragged(vectors.repeat_interleave(2, 0), torch.full((5,), 2))))[
        "clip"
    ]
    torch.testing.assert_close(single, repeated)


def test_output_dim_with_two_levels(make_batch: Maker) -> None:
    config = ModelConfig(dim=16, output_dim=7)
    out = build_model(config, DIMS, two_level=True).encode(make_batch([[3, 2], [4]]))
    assert {tuple(value.shape) for value in out.values()} == {(3, 7), (2, 7)}


def test_float16_features_are_read_as_the_model_needs(make_batch: Maker) -> None:
    batch = make_batch([[3, 2]], dtype=torch.float16)
    assert small().encode(batch)["video/video"].dtype == torch.float32


def test_wrong_channels_and_missing_context_are_named(make_batch: Maker) -> None:
    batch = make_batch([[3, 2]], dims=(5, 10))
    with pytest.raises(ValueError, match="rows of 6 channels, but these rows have 5"):
        small().encode(batch)
    batch = make_batch([[3, 2]])
    with pytest.raises(ValueError, match=r"Inputs\.context"):
        small().encode_modality("video", Inputs(batch.inputs["video"].clips), batch.clip_counts)
    with pytest.raises(ValueError, match="no sequences to encode"):
        small().encode_modality(
            "video", Inputs(Ragged(torch.empty(0, 6), torch.empty(0, dtype=torch.int64)), batch.inputs["video"].context)
        )
    with pytest.raises(ValueError, match="clip_counts names 1 videos with 3 clips"):
        small().encode_modality("video", batch.inputs["video"], torch.tensor([3]))
