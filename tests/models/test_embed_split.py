from __future__ import annotations

import threading
from itertools import product

import numpy as np
import pytest
import torch

from crossclr.data import Dataset, Sample
from crossclr.models import JointModel, ModelConfig, build_model, embed_data
from tests.support.pairs import pair_sample


class Fake:
    """Samples on demand; who reads what is noted."""

    def __init__(self, two_level: bool, samples: int = 7, several: bool = False, broken: str = "") -> None:
        self.two_level, self.several, self.count, self.broken = two_level, several, samples, ""
        self.threads: set[int] = set()
        self.read_keys: list[str] = []
        self.data = Dataset.from_samples(self)
        self.threads, self.read_keys, self.broken = set(), [], broken

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        key = f"v{index}"
        if key == self.broken:
            raise ValueError("features.h5: key 'v4' is truncated")
        self.threads.add(threading.get_ident())
        self.read_keys.append(key)
        draw = np.random.default_rng(index)

        def rows(dim: int) -> np.ndarray:
            return draw.standard_normal((int(draw.integers(1, 6)), dim)).astype(np.float32)

        clips = 1 + index % 3
        clip_of = [i for i in range(clips) for _ in range(1 + (i + index) % 2 if self.several else 1)]
        return pair_sample(
            key,
            [rows(4) for _ in range(clips)],
            [rows(6) for _ in clip_of],
            (rows(4), rows(6)) if self.two_level else (None, None),
            clip_of=clip_of,
            texts=[f"{key} {i}" for i in range(len(clip_of))],
            group="even" if index % 2 == 0 else "odd",
        )


def model_for(source: Fake, dropout: float = 0.5) -> JointModel:
    torch.manual_seed(0)
    encoder = {"heads": 2, "dropout": dropout}
    config = ModelConfig.model_validate({"dim": 8, "encoder": encoder, "global_encoder": encoder})
    model = build_model(config, source.data.dims, source.two_level)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("two_level", [False, True])
def test_batch_size_changes_nothing(two_level: bool, several: bool) -> None:
    source = Fake(two_level, several=several)
    model = model_for(source)
    whole, parts = (embed_data(model, source.data, batch_size=size) for size in (64, 2))
    for name, part in product(("video", "text"), ("rows", "videos", "context")):
        a, b = getattr(whole[name], part), getattr(parts[name], part)
        assert (a is None) == (not two_level and part != "rows")
        if a is not None:
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
            assert a.dtype == torch.float32
    for name in ("video", "text"):
        assert torch.equal(whole[name].clip_of, parts[name].clip_of)
    assert whole.clip_keys == parts.clip_keys


def test_keys_texts_and_targets() -> None:
    source = Fake(two_level=True, samples=3, several=True)
    got = embed_data(model_for(source), source.data, batch_size=2)
    assert got.video_keys == ("v0", "v1", "v2")
    assert got.clip_counts.tolist() == [1, 2, 3]
    assert got.clip_keys == ("v0", "v1/0", "v1/1", "v2/0", "v2/1", "v2/2")
    # v0: one sentence; v1: two for its first clip and one for the second; v2: one, two, one.
    assert got["text"].clip_of.tolist() == [0, 1, 1, 2, 3, 4, 4, 5]
    assert got["text"].texts == tuple(f"{v} {i}" for v, n in (("v0", 1), ("v1", 3), ("v2", 4)) for i in range(n))
    assert got.groups == ("even", "odd", "even")
    assert got["video"].rows.shape == (6, 8)
    assert got["text"].rows.shape == (8, 8)
    assert got["text"].videos is not None
    assert got["text"].videos.shape == (3, 16)


def test_mode_is_restored_and_no_graph_is_kept() -> None:
    source = Fake(two_level=False)
    model = model_for(source).train()
    one, other = (embed_data(model, source.data) for _ in range(2))
    assert model.training
    assert torch.equal(one["video"].rows, other["video"].rows)  # no dropout
    assert not one["video"].rows.requires_grad
    assert not one["video"].rows.is_inference()  # usable in a later gradient
    assert not embed_data(model.eval(), source.data)["text"].rows.requires_grad
    assert not model.training


def test_reading_runs_in_one_other_thread_in_order_and_reports() -> None:
    source = Fake(two_level=False)
    seen: list[tuple[int, int]] = []
    embed_data(model_for(source), source.data, batch_size=3, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(3, 7), (6, 7), (7, 7)]
    assert source.read_keys == [f"v{place}" for place in range(7)]
    assert len(source.threads) == 1
    assert threading.get_ident() not in source.threads


def test_a_fault_while_reading_reaches_the_caller_and_restores_the_mode() -> None:
    source = Fake(two_level=False, broken="v4")
    model = model_for(source).train()
    with pytest.raises(ValueError, match="'v4' is truncated"):
        embed_data(model, source.data, batch_size=2)
    assert model.training


def test_empty_split_and_batch_size_are_refused() -> None:
    source = Fake(two_level=False)
    with pytest.raises(ValueError, match="has no samples"):
        embed_data(model_for(source), source.data.select([]))
    with pytest.raises(ValueError, match="batch_size"):
        embed_data(model_for(source), source.data, batch_size=0)
