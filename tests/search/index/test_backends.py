"""Both back ends against a plain argsort in float64."""

import shutil

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossclr.search.faiss_graph import Graph, IndexSettings
from crossclr.search.faiss_index import FaissIndex
from tests.support.vectors import unit

SMALL = IndexSettings(exact_limit=50, hnsw_limit=400)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


def vectors(count, dim=16, seed=0, latent=6):
    rng = np.random.default_rng(seed)
    shape = np.random.default_rng(latent).standard_normal((latent, dim))  # one for all, as in a space that was learned
    rows = rng.standard_normal((count, latent)) @ shape
    rows += 0.1 * rng.standard_normal((count, dim))
    return unit(rows).astype(np.float32)


def oracle(items, queries, top, allowed=None):
    """Ids by a full sort, -1 behind the end; items maps id to vector."""
    kept = {key: row for key, row in items.items() if allowed is None or (key < len(allowed) and allowed[key])}
    keys = np.array(sorted(kept), dtype=np.int64)
    out = np.full((len(queries), top), -1, dtype=np.int64)
    if len(keys):
        matrix = np.stack([kept[key] for key in keys.tolist()]).astype(np.float64)
        order = np.argsort(-(queries.astype(np.float64) @ matrix.T), axis=1, kind="stable")[:, :top]
        out[:, : order.shape[1]] = keys[order]
    return out


def milvus(dim, folder):
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    from crossclr.search.milvus_index import MilvusIndex

    return MilvusIndex(dim, str(folder / "lite.db"))


@pytest.fixture(params=["exact", "hnsw", "ivfpq", "milvus"])
def filled(request, tmp_path):
    """A back end with items, and the same items as a dict."""
    count = {"exact": 50, "hnsw": 300, "ivfpq": 1500, "milvus": 60}[request.param]
    ids = np.random.default_rng(1).permutation(count * 2)[:count].astype(np.int64)
    rows = vectors(count)
    if request.param == "milvus":
        index = milvus(16, tmp_path)
        index.add(ids, rows)
    else:
        index = FaissIndex(16, SMALL)
        index.add(ids, rows)
        index.compact()
        assert index.kind == request.param
        assert index.recall >= 0.97
    yield index, dict(zip(ids.tolist(), rows, strict=True))
    if request.param == "milvus":
        index.close()


def recall(found, true):
    hits = [len((set(a) & set(b)) - {-1}) for a, b in zip(found.tolist(), true.tolist(), strict=True)]
    return 1.0 if (true < 0).all() else sum(hits) / int((true >= 0).sum())


def check(index, items, queries, top=10, allowed=None, at_least=0.95):
    scores, ids = index.search(queries, top, allowed)
    assert scores.shape == ids.shape == (len(queries), top)
    assert scores.dtype == np.float32
    assert ids.dtype == np.int64
    true = oracle(items, queries, top, allowed)
    assert recall(ids, true) >= at_least
    for row in range(len(queries)):
        for score, key in zip(scores[row], ids[row], strict=True):
            if key < 0:
                assert score == -np.inf
            else:
                assert score == pytest.approx(float(queries[row] @ items[int(key)]), abs=2e-3)
        real = scores[row][ids[row] >= 0]
        assert (np.diff(real) <= 1e-6).all()


def test_search_add_replace_delete_without_a_rebuild(filled):
    index, items = filled
    queries = vectors(20, seed=3)
    check(index, items, queries)
    new = vectors(12, seed=5)
    some = np.array([*sorted(items)[:8], 10_000, 10_001, 10_002, 10_003], dtype=np.int64)
    index.add(some, new)  # eight replaced, four new
    items.update(zip(some.tolist(), new, strict=True))
    assert len(index) == len(items)
    check(index, items, queries)
    assert index.search(new, 1)[1][:, 0].tolist() == some.tolist()
    gone = np.array([*sorted(items)[2:20], 99_999], dtype=np.int64)
    assert index.delete(gone) == 18
    for key in gone[:-1].tolist():
        del items[key]
    assert len(index) == len(items)
    check(index, items, queries)
    with pytest.raises(KeyError, match=str(gone[0])):
        index.vectors(gone[:1])
    kept = np.array(sorted(items)[::7], dtype=np.int64)
    np.testing.assert_allclose(index.vectors(kept), [items[key] for key in kept.tolist()], atol=1e-3)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9])
def test_only_allowed_items_are_found(filled, share):
    index, items = filled
    allowed = np.zeros(max(items) + 1, dtype=np.bool_)
    keys = sorted(items)
    chosen = np.random.default_rng(4).permutation(keys)[: int(share * len(keys))]
    allowed[chosen] = True
    queries = vectors(10, seed=6)
    _, ids = index.search(queries, 5, allowed)
    assert set(ids.ravel().tolist()) <= {*chosen.tolist(), -1}
    check(index, items, queries, 5, allowed, at_least=0.9)
    short = allowed[: len(allowed) // 2]  # items behind the end of the mask are not allowed
    check(index, items, queries, 5, short, at_least=0.9)


def test_what_was_saved_is_opened(filled, tmp_path):
    index, items = filled
    index.add(np.array([77_777]), vectors(1, seed=8))
    index.delete(np.array(sorted(items)[:3]))
    queries = vectors(10, seed=9)
    before = index.search(queries, 8)
    index.save(tmp_path / "saved")
    again = type(index).open(tmp_path / "saved")
    after = again.search(queries, 8)
    np.testing.assert_array_equal(before[1], after[1])
    np.testing.assert_allclose(before[0], after[0], atol=1e-6)
    assert len(again) == len(index)
    again.add(np.array([88_888]), vectors(1, seed=10))  # an opened index can be changed
    assert 88_888 in again.search(vectors(1, seed=10), 3)[1]
    again.save(tmp_path / "again")
    third = type(index).open(tmp_path / "again")
    assert len(third) == len(index) + (1 if isinstance(index, FaissIndex) else 0)


def test_saving_a_small_change_does_not_copy_the_graph(tmp_path):
    index = FaissIndex(16, SMALL)
    index.add(np.arange(300), vectors(300))
    index.compact()
    index.save(tmp_path / "one")
    opened = FaissIndex.open(tmp_path / "one")
    opened.delete(np.array([5]))
    opened.save(tmp_path / "two")
    graph = tmp_path / "two" / "graph" / "graph.faiss"
    assert graph.stat().st_ino == (tmp_path / "one" / "graph" / "graph.faiss").stat().st_ino
    shutil.rmtree(tmp_path / "one")
    assert len(FaissIndex.open(tmp_path / "two")) == 299


def test_compacting_takes_up_the_tail_and_drops_what_is_gone():
    index = FaissIndex(16, SMALL)
    rows = vectors(300)
    index.add(np.arange(200), rows[:200])
    index.compact()
    assert index.kind == "hnsw"
    index.add(np.arange(200, 300), rows[200:])
    assert index.needs_compacting
    index.compact()
    assert not index.needs_compacting
    assert len(index.graph) == 300
    index.delete(np.arange(280))
    index.compact()
    assert index.kind == "exact"
    np.testing.assert_array_equal(index.ids(), np.arange(280, 300))


@pytest.mark.parametrize("limit", [400, 5])
def test_rows_that_stand_many_times_are_all_found(limit, tmp_path):
    distinct = vectors(300)
    rows = np.concatenate([np.repeat(distinct[:20], 40, axis=0), distinct])  # twenty stand 41 times
    index = FaissIndex(16, IndexSettings(exact_limit=50, hnsw_limit=limit))
    index.add(np.arange(1100), rows)
    index.compact(vectors(40, seed=7))
    assert len(index.graph) == 300
    assert len(index) == 1100
    items = dict(enumerate(rows))
    queries = distinct[:30] + 0.05 * vectors(30, seed=8)
    for top in (5, 60):
        scores, ids = index.search(queries, top)
        best = -np.sort(-(queries @ rows.T), axis=1)[:, :top]
        assert np.isclose(scores, best, atol=2e-3).mean() > (0.97 if top <= 10 else 0.9)  # it is tuned for ten
        assert all(len(set(row)) == top for row in ids.tolist())
    np.testing.assert_allclose(index.vectors(np.arange(0, 1100, 13)), rows[::13], atol=1e-3)
    gone = np.arange(3, 33)  # most copies of the first row
    assert index.delete(gone) == 30
    found = index.search(queries[:1], 20)[1][0]
    assert not set(found.tolist()) & set(gone.tolist())
    assert set(found.tolist()) >= {0, 1, 2, 33, 34, 35, 36, 37, 38, 39, 800}
    allowed = np.zeros(1100, dtype=np.bool_)
    allowed[::2] = True
    index.save(tmp_path / "index")
    again = FaissIndex.open(tmp_path / "index")
    for key in gone.tolist():
        del items[key]
    for one in (index, again):
        _, ids = one.search(queries, 10, allowed)
        assert (ids % 2 == 0).all()
        assert not set(ids.ravel().tolist()) & set(gone.tolist())
    np.testing.assert_array_equal(index.search(queries, 10)[1], again.search(queries, 10)[1])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ad"), st.lists(st.integers(0, 12), min_size=1, max_size=6)), max_size=10))
def test_any_order_of_changes_equals_a_dict(changes):
    index, items = FaissIndex(4, IndexSettings(exact_limit=4)), {}
    for seed, (what, keys) in enumerate(changes):
        keys = np.unique(np.array(keys, dtype=np.int64))
        if what == "a":
            rows = vectors(len(keys), dim=4, seed=seed, latent=4)
            index.add(keys, rows)
            items.update(zip(keys.tolist(), rows, strict=True))
        else:
            assert index.delete(keys) == len([key for key in keys.tolist() if key in items])
            items = {key: row for key, row in items.items() if key not in keys}
        index.compact()
        assert len(index) == len(items)
        assert index.ids().tolist() == sorted(items)
    queries = vectors(3, dim=4, seed=99, latent=4)
    found = index.search(queries, 13)[1]
    assert [sorted(row) for row in found.tolist()] == [sorted(row) for row in oracle(items, queries, 13).tolist()]


def test_wrong_input_is_refused_with_a_reason():
    index = FaissIndex(3)
    good = np.eye(3, dtype=np.float32)
    for ids, rows, message in [
        (np.arange(2), good, "but the ids have shape"),
        (np.array([0, 1, 1]), good, "twice"),
        (np.array([0, 1, -1]), good, "0 or above"),
        (np.arange(3), good[:, :2], r"\(count, 3\)"),
        (np.arange(3), good * np.nan, "finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            index.add(ids, rows)
    with pytest.raises(ValueError, match="top"):
        index.search(good, 0)
    assert index.search(good, 2)[1].tolist() == [[-1, -1]] * 3
    with pytest.raises(ValueError, match="dim"):
        FaissIndex(0)


def test_a_mistake_in_the_package_is_not_a_damaged_index(tmp_path, monkeypatch):
    index = FaissIndex(16, SMALL)
    index.add(np.arange(300), vectors(300))
    index.compact()
    index.save(tmp_path / "index")
    monkeypatch.setattr(Graph, "__init__", lambda *_: {}["mistake"])
    with pytest.raises(KeyError, match="mistake"):
        FaissIndex.open(tmp_path / "index")


def test_a_damaged_index_says_so(tmp_path):
    index = FaissIndex(16, SMALL)
    index.add(np.arange(300), vectors(300))
    index.compact()
    index.save(tmp_path / "index")
    with pytest.raises(FileExistsError):
        index.save(tmp_path / "index")
    (tmp_path / "index" / "graph" / "graph.faiss").write_bytes(b"IHNs broken")
    with pytest.raises(ValueError, match="rebuild it"):
        FaissIndex.open(tmp_path / "index")
