import numpy as np
import pytest

from crossclr.search.building.hubness import apply_correction, correction, count_hubs, with_correction
from crossclr.search.index.contract import unit
from crossclr.search.index.faiss_index import FaissIndex


def test_occurrences_equal_a_plain_count():
    rng = np.random.default_rng(0)
    items, queries = unit(rng.standard_normal((40, 5))), unit(rng.standard_normal((30, 5)))
    index = FaissIndex(5)
    index.add(np.arange(40), items)
    found = count_hubs(index, queries, 40)
    expected = np.zeros(40, dtype=int)
    for query in queries:
        for row in sorted(range(40), key=lambda row: -float(query @ items[row]))[:10]:
            expected[row] += 1
    np.testing.assert_array_equal(found.counts, expected)
    assert found.tried == 30


def test_the_correction_rides_on_one_more_channel():
    rng = np.random.default_rng(2)
    middle = rng.standard_normal(8)
    queries = unit(middle + rng.standard_normal((60, 8)))
    items = unit(np.linspace(0, 2, 25)[:, None] * middle + rng.standard_normal((25, 8)))  # the last ones are hubs
    asked = FaissIndex(8)
    asked.add(np.arange(60), queries)
    bias = correction(asked, items)
    for row in range(25):
        assert bias[row, 0] == pytest.approx(-0.5 * np.sort(queries @ items[row])[-10:].mean(), abs=1e-6)
    index = FaissIndex(9)
    index.add(np.arange(25), np.concatenate([items, bias], axis=1))
    scores, ids = index.search(apply_correction(queries, True), 25)
    expected = queries @ items.T + bias[:, 0]
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1), atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(expected, ids, 1), scores, atol=1e-6)
    plain, corrected = FaissIndex(8), index
    plain.add(np.arange(25), items)
    before = count_hubs(plain, queries, 25).counts
    after = count_hubs(corrected, apply_correction(queries, True), 25).counts
    assert after.std() < before.std()  # that is what it is for
    with pytest.raises(ValueError, match="none"):
        correction(FaissIndex(8), items)


def test_an_index_with_and_without_a_correction():
    items = np.eye(3, dtype=np.float32)
    assert with_correction(items, items, False) is items
    assert apply_correction(items, False) is items
    from_items = with_correction(items, items[:1], True)  # one query, near to the first item
    np.testing.assert_allclose(from_items[:, 3], [-0.5, 0, 0])
