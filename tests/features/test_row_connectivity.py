from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from crossclr.features.row_connectivity import connectivity, connectivity_to


@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 1000))
def test_it_is_the_mean_cosine_to_the_others(size: int, dim: int, seed: int) -> None:
    rows = torch.randn(size, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    got = connectivity(rows)
    for i in range(size):
        others = [torch.cosine_similarity(rows[i], rows[j], dim=0) for j in range(size) if j != i]
        torch.testing.assert_close(got[i], sum(others, torch.zeros((), dtype=torch.float64)) / max(len(others), 1))


def test_a_row_of_zeros_has_none_and_known_squares_change_nothing() -> None:
    unit = torch.nn.functional.normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]]), dim=1)
    got = connectivity_to(unit, unit.sum(0), 3)
    assert got[1] == 0
    torch.testing.assert_close(connectivity_to(unit, unit.sum(0), 3, torch.tensor([1.0, 0.0, 1.0])), got)
