"""Paired t-tests by hand."""

import math

import numpy as np
import pytest
from scipy import integrate, special

from crossclr.studies.significance import against_best, bootstrap_interval, paired


def p_by_hand(a, b):
    """The t distribution integrated from its density."""
    n = len(a)
    d = [x - y for x, y in zip(a, b, strict=True)]
    mean = sum(d) / n
    t = mean / math.sqrt(sum((x - mean) ** 2 for x in d) / (n - 1) / n)
    nu = n - 1
    scale = special.gamma((nu + 1) / 2) / math.sqrt(nu * math.pi) / special.gamma(nu / 2)
    tail, _ = integrate.quad(lambda x: scale * (1 + x * x / nu) ** (-(nu + 1) / 2), abs(t), math.inf)
    return 2 * tail


@pytest.mark.parametrize(
    ("a", "b"), [([10.1, 11.2, 10.7, 9.9, 10.4], [9.8, 10.1, 10.9, 9.2, 10.0]), ([1.0, 2.0, 3.0], [3.0, 2.0, 1.5])]
)
def test_against_the_density(a, b):
    found = paired(a, b)
    assert found.p == pytest.approx(p_by_hand(a, b), rel=1e-6)
    assert found.difference == pytest.approx(sum(a) / len(a) - sum(b) / len(b))
    assert found.relative == pytest.approx(100 * (sum(a) / sum(b) - 1))


def test_cases_without_a_spread():
    assert paired([1.0] * 3, [1.0] * 3).p == 1.0
    assert paired([2.0, 3.0, 4.0], [1.0, 2.0, 3.0]).p == 0.0
    assert math.isnan(paired([2.0], [1.0]).p)
    with pytest.raises(ValueError, match="same seeds"):
        paired([1.0, 2.0], [1.0])


def test_the_best_rival_is_the_one_with_the_best_mean():
    values = {"ours": [5.0, 6.0], "weak": [1.0, 1.0], "strong": [5.5, 5.0]}
    assert against_best("ours", values, ["weak", "strong", "ours"]).rival == "strong"
    assert against_best("ours", values, ["ours"]) is None


def test_bootstrap_interval_has_the_width_of_a_normal_interval_with_many_queries():
    rng = np.random.default_rng(1)
    queries = 4_000
    rival = (rng.random((1, queries)) < 0.3) * 100.0
    better = np.maximum(rival, (rng.random((1, queries)) < 0.1) * 100.0)
    found = bootstrap_interval(better, rival)
    mean, error = (better - rival).mean(), (better - rival).std() / np.sqrt(queries)
    assert found.low == pytest.approx(mean - 1.96 * error, abs=0.12 * error)
    assert found.high == pytest.approx(mean + 1.96 * error, abs=0.12 * error)


def test_bootstrap_interval_sees_the_spread_of_seeds():
    queries = 2_000
    seeds = np.array([[0.0], [4.0], [8.0]]) + np.zeros((3, queries))  # queries agree, seeds do not
    found = bootstrap_interval(seeds, np.zeros_like(seeds))
    assert found.low < 1.5 < 6.5 < found.high
    with pytest.raises(ValueError, match="same seeds and queries"):
        bootstrap_interval(seeds, seeds[:2])


def test_two_seeds_are_too_few_for_a_test():
    found = paired([3.0, 4.0], [1.0, 2.1], "CLIP")
    assert math.isnan(found.p)
    assert found.shown == "–"
    assert "too few seeds for a test" in found.words()
    assert "significant" not in found.words()
