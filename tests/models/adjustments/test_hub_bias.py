"""The correction of hubs against a loop over items in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cosine_similarity

from crossclr.models import Hubs, HubsConfig, ModelConfig, build_model
from crossclr.models.adjustments import hub_bias
from crossclr.models.adjustments.hub_bias import with_bias


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(deadline=None, max_examples=30)
@given(
    asked=st.integers(1, 9),
    items=st.integers(1, 4),
    sharpness=st.sampled_from([0.01, 1.0, 20.0, 500.0]),
    weight=st.floats(0.01, 1.0),
)
def test_it_equals_a_loop(asked: int, items: int, sharpness: float, weight: float) -> None:
    queries, rows = drawn(asked, 5, seed=1), drawn(items, 5, seed=2)
    found = Hubs(queries, sharpness, weight)(rows)
    assert found.abs().max() <= weight + 1e-9
    for value, row in zip(found.tolist(), rows, strict=True):
        cosines = [float(cosine_similarity(row, query, dim=0)) for query in queries]
        top = max(cosines)
        mean = sum(math.exp(sharpness * (cosine - top)) for cosine in cosines) / asked
        assert value == pytest.approx(-weight * (top + math.log(mean) / sharpness), abs=1e-9)


@pytest.mark.parametrize(("sharpness", "expected"), [(1e-4, "mean"), (1e5, "largest")])
def test_a_small_and_a_large_sharpness(sharpness: float, expected: str) -> None:
    queries, rows = drawn(7, 5, seed=1), drawn(3, 5, seed=2)
    cosines = cosine_similarity(rows[:, None], queries[None], dim=2)
    wanted = cosines.mean(1) if expected == "mean" else cosines.max(1).values
    torch.testing.assert_close(Hubs(queries, sharpness)(rows), -wanted, atol=1e-4, rtol=0)


@settings(deadline=None, max_examples=30)
@given(queries=st.integers(1, 5), items=st.integers(1, 6), dim=st.integers(1, 4), seed=st.integers(0, 99))
def test_a_bias_becomes_part_of_a_cosine(queries: int, items: int, dim: int, seed: int) -> None:
    asked, found = drawn(queries, dim, seed=seed), drawn(items, dim, seed=seed + 1)
    bias = torch.tanh(drawn(items, seed=seed + 2))
    wide, gallery = with_bias(asked, found, bias)
    cosines = cosine_similarity(asked[:, None], found[None], dim=2)
    torch.testing.assert_close(2 * cosine_similarity(wide[:, None], gallery[None], dim=2), cosines + bias)
    plain, same = with_bias(asked, found, None)
    assert plain is asked
    assert same is found


def test_of_many_queries_some_are_kept_from_the_first_to_the_last() -> None:
    queries = drawn(9, 3, seed=1)
    few = Hubs.of(HubsConfig(most=2, sharpness=7.0), queries, 0.3)
    torch.testing.assert_close(few.queries, Hubs(queries, 7.0).queries[[0, 8]])
    assert (few.sharpness, few.weight) == (7.0, 0.3)


def test_they_are_no_part_of_the_weights() -> None:
    model = build_model(ModelConfig(dim=8), (3, 4), two_level=False)
    weights = model.state_dict().keys()
    model.hubs = {"a": Hubs(torch.randn(5, 8), 5.0)}
    assert model.state_dict().keys() == weights


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    built, rows = Hubs(drawn(30, 4, seed=1), 5.0), drawn(7, 4, seed=3)
    whole = built(rows)
    monkeypatch.setattr(hub_bias, "BLOCK", 3)
    torch.testing.assert_close(built(rows), whole)
