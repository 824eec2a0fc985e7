"""Ranks against a sort in float64, with duplicates, ties, several targets and every dtype."""

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossclr.evaluation import ranks as module
from crossclr.evaluation import retrieval_ranks
from crossclr.evaluation.ranks import Targets
from tests.support.vectors import cosines, unit


def loop_ranks(queries, gallery, targets=None):
    """The definition, one query at a time: unit rows in float64, counts in Python."""
    queries, gallery = unit(queries), unit(gallery)
    result = []
    for i, query in enumerate(queries):
        valid = [i] if targets is None else list(np.atleast_1d(targets[i]))
        scores = [sum(q * g for q, g in zip(query, row, strict=True)) for row in gallery]
        own = max(scores[j] for j in valid)
        others = [score for j, score in enumerate(scores) if j not in valid]
        greater = sum(score > own + 1e-12 for score in others)
        equal = sum(abs(score - own) <= 1e-12 for score in others)
        result.append(1 + greater + equal / 2)
    return result


def sort_ranks(queries, gallery):
    """Rank by a full sort in float64; only for data without ties."""
    order = np.argsort(-cosines(queries, gallery), axis=1)
    return 1 + np.argmax(order == np.arange(len(queries))[:, None], axis=1)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles so small that every kind of border is met."""
    monkeypatch.setattr(module, "QUERY_TILE", 7)
    monkeypatch.setattr(module, "GALLERY_TILE", 5)
    monkeypatch.setattr(module, "PAIRS", 3)


@settings(deadline=None, max_examples=120)
@given(st.data())
def test_many_ties_agree_with_the_loop(data):
    """Rows of -1, 0, 1 in few dimensions: duplicates, equal scores of different rows and rows of zeros abound."""
    count = data.draw(st.integers(1, 24))
    size = data.draw(st.integers(1, 24))
    dim = data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    queries = rng.integers(-1, 2, (count, dim)).astype(np.float32) * rng.choice([0.3, 1.0, 7.0], (count, 1))
    gallery = rng.integers(-1, 2, (size, dim)).astype(np.float32) * rng.choice([0.5, 1.0, 2.0], (size, 1))
    targets = [
        sorted(rng.choice(size, size=rng.integers(1, min(size, 4) + 1), replace=False).tolist()) for _ in range(count)
    ]
    tiles = (module.QUERY_TILE, module.GALLERY_TILE, module.PAIRS)
    try:
        module.QUERY_TILE, module.GALLERY_TILE, module.PAIRS = data.draw(st.sampled_from([tiles, (3, 4, 2), (1, 7, 5)]))
        found = retrieval_ranks(queries, gallery, targets)
    finally:
        module.QUERY_TILE, module.GALLERY_TILE, module.PAIRS = tiles
    assert found.tolist() == loop_ranks(queries, gallery, targets)


LARGE = [pytest.param(count, dim, marks=pytest.mark.slow) for count, dim in [(1500, 256), (4100, 33)]]


@pytest.mark.parametrize(("count", "dim"), [(1, 3), (2, 1), (100, 16), (513, 64), *LARGE])
def test_random_rows_agree_with_a_sort_in_float64(count, dim):
    rng = np.random.default_rng(count)
    gallery = rng.normal(size=(count, dim)).astype(np.float32)
    queries = (gallery + rng.normal(size=(count, dim)) * 2).astype(np.float32)
    if dim > 1:
        expected = sort_ranks(queries.astype(np.float64), gallery.astype(np.float64))
        assert np.array_equal(retrieval_ranks(queries, gallery).numpy(), expected)
    assert retrieval_ranks(queries, gallery).tolist()[:40] == pytest.approx(
        loop_ranks(queries[:40], gallery, range(40))
    )


@pytest.mark.parametrize("count", [1, 2, 3, 31, 511, 513, 1000])
@pytest.mark.parametrize("dim", [1, 7, 256, 1536])
def test_a_collapsed_embedding_scores_like_chance(count, dim):
    row = np.random.default_rng(dim).normal(size=dim).astype(np.float32)
    constant = np.tile(row, (count, 1))
    ranks = retrieval_ranks(constant, constant)
    assert ranks.tolist() == [(count + 1) / 2] * count
    # One direction, every length: the rows differ in their last bits, the cosines must not.
    scaled = constant * np.random.default_rng(count).uniform(0.1, 10, (count, 1))
    assert retrieval_ranks(scaled, constant).tolist() == [(count + 1) / 2] * count
    assert retrieval_ranks(np.zeros_like(constant), constant).tolist() == [(count + 1) / 2] * count


@pytest.mark.parametrize("size", [2, 3, 5, 8, 17, 64, 100, 129, 500, 1031, 4096, 4097, 5000])
@pytest.mark.parametrize("dim", [3, 100, 257])
def test_bit_identical_duplicates_are_ties_wherever_they_stand(size, dim):
    rng = np.random.default_rng(size * dim)
    gallery = rng.normal(size=(size, dim)).astype(np.float32)
    copies = rng.choice(size, size=min(size, 20), replace=False)
    gallery[copies] = gallery[copies[0]]
    # The query points at the copies, so nothing is above them and all the others tie.
    queries = np.tile(gallery[copies[0]] * 3, (len(copies), 1))
    assert retrieval_ranks(queries, gallery, copies).tolist() == [1 + (len(copies) - 1) / 2] * len(copies)


def test_scores_closer_than_float32_are_ordered(small_tiles):
    """Angles 1e-5 apart near the query: cosines differ by about 1e-10, far below float32's resolution."""
    angles = np.arange(1, 13) * 1e-5
    gallery = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    queries = np.tile([1.0, 0.0], (12, 1))
    assert retrieval_ranks(queries, gallery).tolist() == list(range(1, 13))


def test_target_forms_agree(small_tiles):
    rng = np.random.default_rng(3)
    queries, gallery = rng.normal(size=(20, 6)), rng.normal(size=(11, 6))
    single = rng.integers(0, 11, 20)
    expected = loop_ranks(queries, gallery, single)
    sparse = scipy.sparse.csr_array((np.ones(20), (np.arange(20), single)), shape=(20, 11))
    for targets in (
        single,
        single.tolist(),
        torch.tensor(single),
        single[:, None],
        [[t] for t in single],
        [[t, t] for t in single],
        sparse,
        Targets(torch.tensor(single), torch.ones(20, dtype=torch.int64)),
    ):
        assert retrieval_ranks(queries, gallery, targets).tolist() == expected


def test_several_targets_the_best_counts_and_the_others_do_not(small_tiles):
    gallery = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0]])
    query = torch.tensor([[1.0, 0.0]])
    assert retrieval_ranks(query, gallery, [[2]]).item() == 3
    assert retrieval_ranks(query, gallery, [[1, 2]]).item() == 2
    assert retrieval_ranks(query, gallery, [[0, 1, 2]]).item() == 1
    assert retrieval_ranks(query, gallery, [[3, 2]]).item() == 3
    # Two valid targets among five equal rows: three others tie, half of them count.
    assert retrieval_ranks(torch.ones(1, 2), torch.ones(5, 2), [[1, 3]]).item() == 1 + 3 / 2


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(torch.bfloat16, "torch")]  # NumPy has no bfloat16
    + [
        (dtype, kind)
        for dtype in (torch.float16, torch.float32, torch.float64, torch.int64)
        for kind in ("torch", "numpy")
    ],
)
def test_dtypes(dtype, kind):
    generator = torch.Generator().manual_seed(0)
    queries = (torch.randn(40, 5, generator=generator) * 9).to(dtype)
    gallery = (queries.double() + torch.randn(40, 5, generator=generator) * 9).to(dtype)
    expected = loop_ranks(queries.double(), gallery.double())
    if kind == "numpy":
        queries, gallery = queries.numpy(), gallery.numpy()
    assert retrieval_ranks(queries, gallery).tolist() == expected


def test_extreme_lengths_do_not_overflow():
    rng = np.random.default_rng(1)
    queries, gallery = rng.normal(size=(30, 8)), rng.normal(size=(30, 8))
    expected = loop_ranks(queries, gallery)
    assert retrieval_ranks(queries * 1e200, gallery * 1e-200).tolist() == expected


def test_read_only_and_reversed_arrays():
    rows = np.random.default_rng(0).normal(size=(6, 4))
    rows.flags.writeable = False
    assert retrieval_ranks(rows[::-1], rows[::-1]).tolist() == [1.0] * 6


@pytest.mark.parametrize(
    ("queries", "gallery", "targets", "message"),
    [
        (torch.ones(2, 3), torch.ones(4, 3), None, "2 queries and 4 gallery rows"),
        (torch.ones(2, 3), torch.ones(2, 4), None, "3 dimensions but the gallery has 4"),
        (torch.ones(3), torch.ones(2, 4), None, r"queries must be \(rows, dimensions\)"),
        (torch.tensor([[1.0], [float("nan")]]), torch.ones(2, 1), None, "row 1 of queries"),
        (torch.ones(2, 1), torch.tensor([[float("inf")], [1.0]]), None, "row 0 of gallery"),
        (torch.ones(2, 1), torch.ones(2, 1), [0, 2], "query 1 is gallery row 2"),
        (torch.ones(2, 1), torch.ones(2, 1), [0, -1], "query 1 is gallery row -1"),
        (torch.ones(2, 1), torch.ones(2, 1), [0], "1 queries but there are 2"),
        (torch.ones(2, 1), torch.ones(2, 1), [[0], []], "query 1 has no target"),
        (torch.ones(2, 1), torch.ones(2, 1), [0.0, 1.0], "must be integers"),
        (torch.ones(2, 1), torch.ones(2, 1), scipy.sparse.csr_array((3, 2)), "sparse targets"),
    ],
)
def test_faults_are_named(queries, gallery, targets, message):
    with pytest.raises(ValueError, match=message):
        retrieval_ranks(queries, gallery, targets)


def test_nan_far_down_is_found():
    rows = np.ones((9000, 2))
    rows[8500, 1] = np.nan
    with pytest.raises(ValueError, match="row 8500 of queries"):
        retrieval_ranks(rows, np.ones((9000, 2)))


def test_no_score_matrix_of_all_pairs(monkeypatch):
    """The largest tensor of scores is one tile, whatever the number of rows."""
    sizes = []
    original = torch.mm

    def spy(left, right, out):
        sizes.append(out.numel())
        return original(left, right, out=out)

    monkeypatch.setattr(torch, "mm", spy)
    rows = torch.randn(9000, 4, generator=torch.Generator().manual_seed(0))
    assert retrieval_ranks(rows, rows).max() == 1
    assert max(sizes) <= module.QUERY_TILE * module.GALLERY_TILE
    assert sum(sizes) == 9000 * 9000
