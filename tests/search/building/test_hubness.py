import numpy as np
import pytest

from crossclr.search.building.hubness import correction, count_occurrences, influence
from crossclr.search.building.run_items import unit
from crossclr.search.index.faiss_index import FaissIndex
from tests.support.vectors import cosine


def test_occurrences_equal_a_plain_count():
    rng = np.random.default_rng(0)
    items, queries = unit(rng.standard_normal((40, 5))), unit(rng.standard_normal((30, 5)))
    index = FaissIndex(5)
    index.add(np.arange(40), items)
    counts, tried = count_occurrences(index, queries, 40)
    expected = np.zeros(40, dtype=int)
    for query in queries:
        for row in sorted(range(40), key=lambda row: -float(query @ items[row]))[:10]:
            expected[row] += 1
    np.testing.assert_array_equal(counts, expected)
    assert tried == 30


def test_influence_is_the_mean_cosine_to_all_others():
    rows = np.random.default_rng(1).standard_normal((12, 6)).astype(np.float32)
    scores, shares = influence(rows)
    for i in range(12):
        others = [cosine(rows[i], rows[j]) for j in range(12) if j != i]
        assert scores[i] == pytest.approx(np.mean(others), abs=1e-6)
        assert shares[i] == pytest.approx(np.mean([other < scores[i] for other in scores]))


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
    scores, ids = index.search(np.pad(queries, ((0, 0), (0, 1)), constant_values=1.0), 25)
    expected = queries @ items.T + bias[:, 0]
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1), atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(expected, ids, 1), scores, atol=1e-6)
    plain, corrected = FaissIndex(8), index
    plain.add(np.arange(25), items)
    before = count_occurrences(plain, queries, 25)[0]
    after = count_occurrences(corrected, np.pad(queries, ((0, 0), (0, 1)), constant_values=1.0), 25)[0]
    assert after.std() < before.std()  # that is what it is for
    with pytest.raises(ValueError, match="none"):
        correction(FaissIndex(8), items)
