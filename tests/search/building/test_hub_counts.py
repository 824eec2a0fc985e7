import numpy as np

from crossclr.search.faiss_index import FaissIndex
from crossclr.search.index import unit
from crossclr.search.item_statistics import count_hubs


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
