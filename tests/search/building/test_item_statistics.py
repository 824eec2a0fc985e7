"""Connectivity of items against plain loops, in a new index and after changes."""

import numpy as np
import pytest

from crossclr.search.items import Item, Items
from crossclr.search.run_items import EmbeddedItems
from tests.support.vectors import cosine


def embedded(rows):
    items = [Item(-1, f"a/{number}", "a", str(number)) for number in range(len(rows))]
    return EmbeddedItems(items, rows, rows)


def connectivities(rows):
    return [np.mean([cosine(row, other) for j, other in enumerate(rows) if j != i]) for i, row in enumerate(rows)]


@pytest.fixture
def rows():
    return np.random.default_rng(1).standard_normal((12, 6)).astype(np.float32)


def test_connectivity_is_the_mean_cosine_to_all_others(rows):
    whole = embedded(rows)
    found = whole.connectivity({"sum": whole.unit_sum(), "count": 12})
    np.testing.assert_allclose(found, connectivities(rows), atol=1e-6)


def test_new_items_are_compared_with_all_items(rows):
    before, joining = embedded(rows[:8]), embedded(rows[6:])  # two of them are replaced by the same inputs
    total = before.unit_sum() + joining.unit_sum(np.array([False, False, True, True, True, True]))
    np.testing.assert_allclose(total, embedded(rows).unit_sum(), atol=1e-6)
    found = joining.connectivity({"sum": total.tolist(), "count": 12})
    np.testing.assert_allclose(found, connectivities(rows)[6:], atol=1e-6)


def test_one_item_alone_and_a_row_of_zeros():
    one = embedded(np.array([[3.0, 4.0]], dtype=np.float32))
    assert one.connectivity({"sum": one.unit_sum(), "count": 1}).tolist() == [pytest.approx(0)]
    zeros = embedded(np.zeros((2, 3), dtype=np.float32))
    assert zeros.connectivity({"sum": zeros.unit_sum(), "count": 2}).tolist() == [0.0, 0.0]


def test_influence_is_the_share_of_items_of_the_modality_with_a_lower_connectivity(tmp_path):
    items = Items(tmp_path / "items.sqlite", writable=True)
    scores = [0.5, 0.1, 0.5, 0.9]
    items.put(Item(n, f"a/{n}", "a", str(n), connectivity=score) for n, score in enumerate(scores))
    items.put([Item(9, "b/9", "b", "9", connectivity=-1.0)])
    assert [items.influence(items.named(f"a/{n}")) for n in range(4)] == [0.25, 0.0, 0.25, 0.75]
    items.close()
