from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from crossclr.losses.memory.influence import anchor_weights, influential, nearest_influential


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


def test_weights_are_even_where_connectivity_says_nothing() -> None:
    assert anchor_weights(torch.tensor([0.3, 0.5]), None).tolist() == [0.5, 0.5]
    assert anchor_weights(torch.tensor([-0.3, 0.3]), 0.01).tolist() == [0.5, 0.5]
    weights = anchor_weights(torch.tensor([0.2, 0.6]), 0.5)
    assert weights.sum().item() == pytest.approx(1)
    assert (weights[1] / weights[0]).item() == pytest.approx(torch.tensor(0.5 / 0.5).exp().item())


def test_nearest_influential_leaves_out_the_anchor_and_fills_up_with_minus_one() -> None:
    rows = F.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), dim=1)
    found = nearest_influential(rows, torch.tensor([True, True, False]), 2)
    assert found is not None
    assert found.tolist() == [[1, -1], [0, -1], [1, 0]]
    assert nearest_influential(rows, torch.zeros(3, dtype=torch.bool), 2) is None
