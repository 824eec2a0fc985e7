"""Linear views beside embeddings: cosines by hand, pooling by a loop, and what they leave alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cosine_similarity

from crossclr.features import ArraySource, Ragged, Side
from crossclr.features.sources.in_memory import MemorySource
from crossclr.models import ModelConfig, JointModel, Views, build_model, embed_source, pool_source
from crossclr.models.adjustments.linear_views import pool
from crossclr.training.joint_training import memory_form


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_views(dims: tuple[int, int] = (5, 4), widths: tuple[int, ...] = (3, 2)) -> Views:
    shares = drawn(1 + len(widths), seed=9).abs()
    return Views(
        drawn(dims[0], seed=1) / 3,
        drawn(dims[0], sum(widths), seed=2),
        drawn(dims[1], seed=3) / 3,
        drawn(dims[1], sum(widths), seed=4),
        torch.tensor(widths),
        shares / shares.sum(),
    )


@settings(deadline=None, max_examples=25)
@given(clips=st.integers(1, 4), sentences=st.integers(1, 4), widths=st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_the_cosine_is_the_mean_of_cosines(clips: int, sentences: int, widths: list[int]) -> None:
    views = some_views(widths=tuple(widths))
    encoded, rows = (
        (drawn(clips, 6, seed=5), drawn(sentences, 6, seed=6)),
        (drawn(clips, 5, seed=7), drawn(sentences, 4, seed=8)),
    )
    a, b = (views(side, *part) for side, part in zip("ab", zip(encoded, rows, strict=True), strict=True))
    assert a.shape == (clips, 6 + sum(widths))
    torch.testing.assert_close(torch.linalg.vector_norm(a, dim=1), torch.ones(clips, dtype=torch.float64))
    for i in range(clips):
        for j in range(sentences):
            expected = views.shares[0] * float(cosine_similarity(encoded[0][i], encoded[1][j], dim=0))
            left, right = rows[0][i] / rows[0][i].norm(), rows[1][j] / rows[1][j].norm()
            start = 0
            for width, share in zip(widths, views.shares[1:], strict=True):
                x = (left - views.mean_a) @ views.basis_a[:, start : start + width]
                y = (right - views.mean_b) @ views.basis_b[:, start : start + width]
                expected += share * float(cosine_similarity(x, y, dim=0))
                start += width
            assert float(a[i] @ b[j]) == pytest.approx(expected, abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), how=st.sampled_from(["mean", "max"]))
def test_pooling_equals_a_loop(lengths: list[int], how: str) -> None:
    sequences = [drawn(length, 3, seed=place) for place, length in enumerate(lengths)]
    found = pool(Ragged.from_list(sequences), 3, "mean" if how == "mean" else "max")
    expected = [rows.mean(0) if how == "mean" else rows.max(0).values for rows in sequences]
    torch.testing.assert_close(found, torch.stack(expected))


def model_of(pooling: str | None, two_level: bool = False) -> JointModel:
    torch.manual_seed(0)
    encoder = {"heads": 2} if pooling is None else {"kind": "mlp", "sequence_pooling": pooling}
    config = ModelConfig.model_validate({"dim": 8, "encoder_a": encoder, "encoder_b": encoder})
    return build_model(config, (5, 4), two_level).eval()


def single() -> Views:
    """Views in single precision, as a run has them."""
    return Views(
        **{name: value if name == "widths" else value.float() for name, value in some_views().tensors().items()}
    )


@pytest.mark.parametrize("pooling", [None, "mean", "max", "mean_max"])
def test_inputs_that_are_kept_pooled_give_the_same(pooling: str | None) -> None:
    rng = np.random.default_rng(0)
    source = ArraySource(rng.normal(size=(6, 7, 5)).astype(np.float32), rng.normal(size=(6, 3, 4)).astype(np.float32))
    model = model_of(pooling)
    kept = MemorySource(source, memory_form(model.config.encoder_a), memory_form(model.config.encoder_b))
    alone = embed_source(model, source, "train")
    model.views = single()
    assert model.embedding_dim == 13
    found, again = embed_source(model, source, "train"), embed_source(model, kept, "train")
    torch.testing.assert_close(found.clip_a, again.clip_a)
    torch.testing.assert_close(found.clip_b, again.clip_b)
    inputs = pool_source(model, kept, "train", 4)
    torch.testing.assert_close(found.clip_a, model.views("a", alone.clip_a, inputs.clip_a))
    rows = torch.from_numpy(source.read("3").clips[0])
    torch.testing.assert_close(inputs.clip_a[3], rows.max(0).values if pooling == "max" else rows.mean(0))
    assert inputs.clip_keys == found.clip_keys


def test_only_clips_and_sentences_get_them() -> None:
    model = model_of(None, two_level=True)
    side = Side(Ragged.from_list([torch.randn(3, 5), torch.randn(2, 5)]), Ragged.from_list([torch.randn(6, 5)]))
    plain = model.encode_a(side, torch.tensor([2]))
    weights = model.state_dict().keys()
    model.views = single()
    found = model.encode_a(side, torch.tensor([2]))
    assert found["clip_emb"].shape == (2, 13)
    for name in ("vid_emb", "vid_context"):
        torch.testing.assert_close(found[name], plain[name])
    assert model.state_dict().keys() == weights


def test_they_are_made_again_from_their_tensors() -> None:
    views = single()
    again = Views(**views.tensors())
    rows = torch.randn(3, 8), torch.randn(3, 5)
    torch.testing.assert_close(again("a", *rows), views("a", *rows))
