"""Anchors against a loop over clips in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crossclr.models import Anchors, AnchorsConfig, Embeddings, ModelConfig, build_model
from crossclr.models.adjustments import anchors
from tests.support.vectors import unit


def moved(
    config: AnchorsConfig, clip: list[float], clips: list[list[float]], sentences: list[list[float]]
) -> list[float]:
    own = unit(clip)
    cosines = [sum(x * y for x, y in zip(own, unit(other), strict=True)) for other in clips]
    nearest = sorted(range(len(clips)), key=lambda place: -cosines[place])[: config.neighbours]
    shares = [math.exp((cosines[place] - cosines[nearest[0]]) / config.temperature) for place in nearest]
    mean = [0.0] * len(own)
    for place, share in zip(nearest, shares, strict=True):
        mean = [m + share / sum(shares) * value for m, value in zip(mean, unit(sentences[place]), strict=True)]
    return [x + config.weight * y for x, y in zip(own, unit(mean), strict=True)]


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(deadline=None, max_examples=30)
@given(
    known=st.integers(1, 9),
    asked=st.integers(1, 4),
    neighbours=st.integers(1, 12),
    weight=st.floats(0.1, 2.0),
    temperature=st.sampled_from([0.02, 0.05, 1.0]),
)
def test_they_equal_a_loop(known: int, asked: int, neighbours: int, weight: float, temperature: float) -> None:
    config = AnchorsConfig(neighbours=neighbours, weight=weight, temperature=temperature)
    clips, sentences, new = drawn(known, 5, seed=1), drawn(known, 5, seed=2), drawn(asked, 5, seed=3)
    found = Anchors(config, clips, sentences)(new)
    for row, clip in zip(found.tolist(), new.tolist(), strict=True):
        assert row == pytest.approx(moved(config, clip, clips.tolist(), sentences.tolist()), abs=1e-10)


def training(clips: int = 6) -> Embeddings:
    clip_of = torch.tensor([0, 0, 1, 2, 2, 2, 4, 5])
    keys = tuple(f"c{clip}" for clip in range(clips))
    return Embeddings(
        drawn(clips, 3, seed=1), drawn(8, 3, seed=2), clip_of, keys, torch.ones(clips, dtype=torch.int64), keys
    )


def test_each_clip_has_the_mean_direction_of_its_sentences() -> None:
    embeddings = training()
    found = Anchors.of(AnchorsConfig(), embeddings)
    assert len(found.clips) == 5  # the fourth clip has no sentence
    for place, clip in enumerate((0, 1, 2, 4, 5)):
        own = embeddings.clip_b[embeddings.clip_of == clip].tolist()
        total = [sum(values) for values in zip(*map(unit, own), strict=True)]
        assert found.sentences[place].tolist() == pytest.approx(unit(total), abs=1e-10)
        assert found.clips[place].tolist() == pytest.approx(unit(embeddings.clip_a[clip].tolist()), abs=1e-10)


def test_of_many_clips_some_are_kept_from_the_first_to_the_last() -> None:
    few = Anchors.of(AnchorsConfig(most=2), training())
    everything = Anchors.of(AnchorsConfig(), training())
    torch.testing.assert_close(few.clips, everything.clips[[0, 4]])


def test_they_are_no_part_of_the_weights() -> None:
    model = build_model(ModelConfig(dim=8), (3, 4), two_level=False)
    weights = model.state_dict().keys()
    model.anchors = Anchors(AnchorsConfig(), torch.randn(5, 8), torch.randn(5, 8))
    assert model.state_dict().keys() == weights


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    built, new = Anchors(AnchorsConfig(), drawn(30, 4, seed=1), drawn(30, 4, seed=2)), drawn(7, 4, seed=3)
    whole = built(new)
    monkeypatch.setattr(anchors, "BLOCK", 3)
    torch.testing.assert_close(built(new), whole)
