"""Probabilities of results: against scikit-learn's isotonic regression, and against what is known about the data."""

import numpy as np
import pytest

from crossclr.search.queries.confidence import Calibration, calibration_error, validation_results


def data(seed, count):
    """Scores, and results that are right with the probability of the score squared."""
    rng = np.random.default_rng(seed)
    scores = rng.uniform(0, 1, count)
    return scores, (rng.uniform(0, 1, count) < scores**2).astype(float)


def test_it_is_isotonic_regression():
    isotonic = pytest.importorskip("sklearn.isotonic").IsotonicRegression()
    scores, right = data(0, 500)
    expected = np.unique(isotonic.fit(scores, right).predict(scores))
    np.testing.assert_allclose(Calibration.fit(scores, right).probabilities, expected, atol=2e-6)


def test_probabilities_are_right_on_new_data():
    fitted = Calibration.fit(*data(0, 4000))
    scores, right = data(1, 4000)
    chances = np.array([fitted(score) for score in scores])
    assert calibration_error(chances, right) < 0.03
    assert calibration_error(np.clip(chances + 0.2, 0, 1), right) > 0.1  # the measure notices
    assert np.all(np.diff(chances[np.argsort(scores)]) >= 0)


def test_the_built_in_set_is_calibrated(searcher):
    index = searcher.items, searcher.indexes, searcher.meta
    fitted = Calibration.fit(*validation_results(*index, "image", "val"))
    scores, right = validation_results(*index, "image", "test")
    assert calibration_error(np.array([fitted(score) for score in scores]), right) <= 0.05
    assert validation_results(*index, "image", "none") is None
    assert validation_results(*index, "text", "val") is None  # text finds text
