from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from crossclr.losses import CrossCLR
from crossclr.losses.influence import connectivity, extra_positives, influential, weight_logits


@given(
    scores=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=40),
    threshold=st.floats(0, 1, width=32),
    rule=st.sampled_from(["relative", "absolute", "quantile"]),
    min_keep=st.floats(0, 1, width=32),
)
def test_pruning_takes_the_most_connected_and_keeps_enough(
    scores: list[float], threshold: float, rule: str, min_keep: float
) -> None:
    values = torch.tensor(scores, dtype=torch.float64)
    mask, held_back = influential(values, threshold, rule, min_keep)
    kept = int((~mask).sum())
    assert kept >= min_keep * len(scores) - 1e-9
    if mask.any() and not mask.all():
        assert values[mask].min() > values[~mask].max() or (rule == "absolute" and not held_back)
    if values.max() <= 0:
        assert not mask.any()


def test_order_of_rows_does_not_matter_even_with_ties() -> None:
    scores = torch.tensor([0.9, 0.9, 0.8, 0.9, 0.1, 0.8])
    order = torch.tensor([5, 3, 1, 0, 4, 2])
    mask, held_back = influential(scores, 0.5, "relative", 0.5)
    assert held_back
    assert mask.tolist() == [True, True, False, True, False, False]
    assert torch.equal(influential(scores[order], 0.5, "relative", 0.5)[0], mask[order])


def weights(c: list[float], weight_scale: float | None, min_effective: float = 0.0) -> torch.Tensor:
    return weight_logits(torch.tensor(c, dtype=torch.float64), weight_scale, min_effective).softmax(0)


def test_weights_are_even_where_connectivity_says_nothing() -> None:
    assert weights([0.3, 0.5], None).tolist() == [0.5, 0.5]
    assert weights([-0.3, 0.3], 0.01).tolist() == [0.5, 0.5]
    assert weights([], 0.01).tolist() == []
    found = weights([0.2, 0.6], 0.5)
    assert found.sum().item() == pytest.approx(1)
    assert (found[1] / found[0]).item() == pytest.approx(math.exp(0.5 / 0.5))


@given(
    c=st.lists(st.floats(-0.2, 1), min_size=2, max_size=30),
    weight_scale=st.sampled_from([1e-9, 1e-4, 0.0035, 0.1]),
    share=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
)
def test_a_share_of_the_anchors_decides_and_milder_weights_stay(
    c: list[float], weight_scale: float, share: float
) -> None:
    plain, raised = weights(c, weight_scale), weights(c, weight_scale, share)
    effective = [1 / (len(c) * float(w.square().sum())) for w in (plain, raised)]
    if effective[0] >= share:
        assert torch.equal(plain, raised)
    else:
        assert effective[1] == pytest.approx(share, abs=1e-6)
        order = torch.tensor(c).argsort()
        assert bool((raised[order].diff() >= -1e-12).all())


def test_extra_positives_omit_the_anchor_and_fill_up_with_minus_one() -> None:
    rows = F.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), dim=1)
    positives = extra_positives(rows, torch.tensor([True, True, False]), 2)
    assert positives is not None
    assert positives.tolist() == [[1, -1], [0, -1], [1, 0]]
    assert extra_positives(rows, torch.zeros(3, dtype=torch.bool), 2) is None


@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 1000))
def test_connectivity_is_the_mean_cosine_to_the_others(size: int, dim: int, seed: int) -> None:
    rows = torch.randn(size, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    got = connectivity(F.normalize(rows, dim=1))
    for i in range(size):
        others = [torch.cosine_similarity(rows[i], rows[j], dim=0) for j in range(size) if j != i]
        torch.testing.assert_close(got[i], sum(others, torch.zeros((), dtype=torch.float64)) / max(len(others), 1))


def test_a_row_of_zeros_has_none_and_known_squares_change_nothing() -> None:
    unit = F.normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]]), dim=1)
    got = connectivity(unit)
    assert got[1] == 0
    torch.testing.assert_close(connectivity(unit, unit.sum(0), torch.tensor([1.0, 0.0, 1.0])), got)


def test_connectivity_of_some_rows_of_a_larger_set() -> None:
    rows = F.normalize(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    torch.testing.assert_close(connectivity(rows[2:5], rows.sum(0), count=9), connectivity(rows)[2:5])


def losses_of(
    size: int, seed: int, scale: float = 1.0, dtype: torch.dtype = torch.float64, twice: bool = False
) -> float:
    """CrossCLR of a random batch whose rows may occur twice; float64 values, cast to the dtype."""
    generator = torch.Generator().manual_seed(seed)
    za, zb, a, b = (torch.randn(size, 5, generator=generator, dtype=torch.float64) + 0.5 for _ in range(4))
    if twice:
        order = torch.randperm(2 * size, generator=torch.Generator().manual_seed(int(scale)))
        za, zb, a, b = (rows.repeat(2, 1)[order] for rows in (za, zb, a, b))
        scale = 1.0
    return float(CrossCLR(temperature=0.1)(*(z.to(dtype) for z in (za, zb)), *((x * scale).to(dtype) for x in (a, b))))


@pytest.mark.filterwarnings("ignore:pruning by")
def test_ties_in_pruning_are_decided_neither_by_rounding_nor_by_scale_nor_by_order() -> None:
    """In a batch of two, both rows have the same connectivity, and so have rows that occur twice."""
    for seed in range(100):
        exact = losses_of(2, seed)
        for scale, dtype in ((1.0, torch.float32), (3.0, torch.float64), (7.0, torch.float64), (3.0, torch.float32)):
            assert losses_of(2, seed, scale, dtype) == pytest.approx(exact, rel=1e-3), (seed, scale, dtype)
        first = losses_of(2, seed, twice=True)
        for order in (2, 3, 4):
            assert losses_of(2, seed, order, twice=True) == pytest.approx(first, rel=1e-9), (seed, order)
