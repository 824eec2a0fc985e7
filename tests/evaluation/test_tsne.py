"""t-SNE in numpy against scikit-learn's."""

import numpy as np
import pytest

from crossclr.evaluation.tsne import main_components, neighbour_shares, tsne


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((6, 12)) * 3
    return (centres[np.arange(150) % 6] + rng.standard_normal((150, 12))).astype(np.float32)


def divergence(shares, places):
    distances = ((places[:, None] - places) ** 2).sum(2)
    closeness = 1 / (1 + distances)
    np.fill_diagonal(closeness, 0)
    closeness /= closeness.sum()
    off = ~np.eye(len(places), dtype=bool)
    return float((shares[off] * np.log(shares[off] / np.maximum(closeness[off], 1e-12))).sum())


def test_the_arrangement_is_as_good_as_that_of_scikit_learn(rows):
    from sklearn.manifold import TSNE

    shares = neighbour_shares(rows, 20)
    other = TSNE(2, perplexity=20, method="exact", init="pca", random_state=0).fit_transform(rows)
    assert divergence(shares, tsne(rows, 20)) < 1.1 * divergence(shares, other)


def test_every_point_has_the_wanted_perplexity_and_shares_sum_to_one(rows):
    rows = rows[:40]
    shares = neighbour_shares(rows, 10)
    assert shares.sum() == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(shares, shares.T)
    # The conditional shares of a point, from the definition, by a search of its own.
    distances = ((rows[:, None].astype(float) - rows) ** 2).sum(2)
    own = np.zeros_like(distances)
    for point in range(len(rows)):
        others = np.delete(distances[point], point)
        best = min(np.geomspace(1e-3, 10, 1500), key=lambda beta: abs(_entropy(others, beta) - np.log(10)))
        weights = np.exp(-best * others)
        own[point, np.arange(len(rows)) != point] = weights / weights.sum()
    np.testing.assert_allclose(shares, (own + own.T) / (2 * len(rows)), atol=2e-5)


def _entropy(distances, beta):
    weights = np.exp(-beta * distances)
    shares = weights / weights.sum()
    return -(shares * np.log(np.maximum(shares, 1e-300))).sum()


def test_main_components_are_those_of_scikit_learn(rows):
    from sklearn.decomposition import PCA

    np.testing.assert_allclose(np.abs(main_components(rows, 5)), np.abs(PCA(5).fit_transform(rows)), atol=1e-3)
    assert main_components(rows[:, :1], 2)[:, 1].tolist() == [0.0] * len(rows)


def test_equal_rows_and_equal_calls(rows):
    np.testing.assert_array_equal(tsne(rows, 20, steps=50), tsne(rows, 20, steps=50))
    assert np.isfinite(tsne(np.ones((30, 4), dtype=np.float32), 5)).all()
