"""Statistics of items against plain loops, in a new index and after changes."""

import numpy as np
import pytest

from crossclr.search.faiss_index import FaissIndex
from crossclr.search.item_statistics import describe_items, influence, influence_of_new, recount_hubs, unit_sum
from crossclr.search.items import Item, Items
from crossclr.search.run_items import EmbeddedItems
from tests.support.vectors import cosine, unit


def embedded(modality, count, seed, first=0):
    rng = np.random.default_rng(seed)
    names = [f"{modality}/{number}" for number in range(first, first + count)]
    return EmbeddedItems(
        [Item(-1, name, modality, name[2:]) for name in names],
        unit(rng.standard_normal((count, 4))).astype(np.float32),
        rng.standard_normal((count, 6)).astype(np.float32),
    )


def connectivities(rows):
    return [np.mean([cosine(row, other) for j, other in enumerate(rows) if j != i]) for i, row in enumerate(rows)]


def hub_counts(items, queries):
    counts = np.zeros(len(items), dtype=int)
    for query in queries:
        for row in sorted(range(len(items)), key=lambda row: -float(query @ items[row]))[:10]:
            counts[row] += 1
    return counts.tolist()


@pytest.fixture
def described(tmp_path):
    """A new index of 30 items of A and 25 of B, with its items and what it says about itself."""
    found = {"a": embedded("a", 30, seed=1), "b": embedded("b", 25, seed=2)}
    ids = {"a": np.arange(30), "b": np.arange(30, 55)}
    indexes = {name: FaissIndex(4) for name in found}
    for name, index in indexes.items():
        index.add(ids[name], found[name].vectors)
    meta = {"dim": 4, "modalities": {"a": {}, "b": {}}}
    items = Items(tmp_path / "items.sqlite", writable=True)
    describe_items(items, indexes, found, ids, meta)
    yield items, indexes, found, meta
    items.close()


def test_influence_is_the_mean_cosine_to_all_others():
    rows = np.random.default_rng(1).standard_normal((12, 6)).astype(np.float32)
    found = influence(rows)
    expected = connectivities(rows)
    np.testing.assert_allclose(found.connectivity, expected, atol=1e-6)
    for i in range(12):
        assert found.share[i] == pytest.approx(np.mean([other < expected[i] for other in expected]))


def test_a_new_index_describes_every_item(described):
    items, _, found, meta = described
    for modality, other in (("a", "b"), ("b", "a")):
        rows = items.columns("connectivity", "hub", where=modality)
        np.testing.assert_allclose([row[0] for row in rows], connectivities(found[modality].pooled), atol=1e-6)
        assert [row[1] for row in rows] == hub_counts(found[modality].vectors, found[other].vectors)
        about = meta["modalities"][modality]
        assert about["tried"] == len(found[other].items)
        assert about["usual"] == pytest.approx(np.mean([row[1] for row in rows]))


def test_new_items_are_compared_with_all_items_and_the_others_keep_their_values(described):
    items, _, found, meta = described
    before = items.columns("connectivity", where="a")
    replaced, fresh = embedded("a", 2, seed=1), embedded("a", 5, seed=3, first=30)
    joining = EmbeddedItems(
        [*replaced.items, *fresh.items],
        np.concatenate([replaced.vectors, fresh.vectors]),
        np.concatenate([found["a"].pooled[:2], fresh.pooled]),  # the two replaced items have the same inputs as before
    )
    among = influence_of_new(items, "a", joining, fresh.items, meta["modalities"]["a"])
    everything = np.concatenate([found["a"].pooled, fresh.pooled])
    expected = np.array(connectivities(everything))
    np.testing.assert_allclose(among.connectivity, expected[[0, 1, *range(30, 35)]], atol=1e-6)
    others = [row[0] for row in before[2:]]  # values of when they were described
    for connectivity, share in zip(among.connectivity, among.share, strict=True):
        assert share == pytest.approx(np.mean([other < connectivity for other in [*others, *among.connectivity]]))
    assert items.columns("connectivity", where="a") == before
    about = meta["modalities"]["a"]["inputs"]
    assert about["count"] == 35
    np.testing.assert_allclose(about["sum"], unit_sum(everything), atol=1e-6)


def test_hubs_are_counted_again_after_a_change(described):
    items, indexes, found, meta = described
    gone = [30, 31, 32]
    indexes["b"].delete(np.array(gone))
    items.delete(gone)
    recount_hubs(items, indexes, meta)
    counts = [row[0] for row in items.columns("hub", where="a")]
    assert counts == hub_counts(found["a"].vectors, found["b"].vectors[3:])
    assert (meta["modalities"]["a"]["tried"], meta["modalities"]["b"]["tried"]) == (22, 30)
    assert meta["modalities"]["a"]["usual"] == pytest.approx(10 * 22 / 30)


def test_without_the_other_modality_there_are_no_trial_queries(described):
    items, indexes, _, meta = described
    del indexes["b"]
    recount_hubs(items, indexes, meta)
    assert meta["modalities"]["a"]["tried"] == 0
