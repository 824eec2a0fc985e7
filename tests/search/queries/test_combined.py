"""The combined query against Rocchio's rule written out by hand."""

import math

import numpy as np
import pytest

from crossclr.search import QueryError
from crossclr.search.query import Weights, combine


def by_hand(parts, dim):
    """parts: (weight, vectors); every vector, every mean and the sum are brought to unit length by loops."""

    def unit(vector):
        length = math.sqrt(sum(value * value for value in vector))
        return [value / length for value in vector]

    total = [0.0] * dim
    for weight, vectors in parts:
        units = [unit(vector) for vector in vectors]
        mean = unit([sum(column) / len(units) for column in zip(*units, strict=True)])
        total = [value + weight * own for value, own in zip(total, mean, strict=True)]
    return unit(total)


def test_it_is_the_weighted_sum_of_unit_means():
    rng = np.random.default_rng(0)
    text, file, more, less = (rng.normal(size=(count, 6)) for count in (1, 1, 3, 2))
    found = combine(text=text, file=file, more=more, less=less, weights=Weights(2, 0.5, 1.5, 0.75))
    expected = by_hand([(2, text), (0.5, file), (1.5, more), (-0.75, less)], 6)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)


def test_one_part_is_the_query_itself():
    text = np.array([[0.6, 0.8]], dtype=np.float32)
    np.testing.assert_allclose(combine(text=text), text, atol=1e-7)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "say what to find"),
        ({"less": np.eye(2)}, "say what to find"),
        ({"text": np.eye(2)[:1], "less": np.eye(2)[:1], "weights": Weights(less=1)}, "cancel"),
    ],
)
def test_queries_that_say_nothing(parts, message):
    with pytest.raises(QueryError, match=message):
        combine(**parts)


def test_weights_are_bounded():
    with pytest.raises(QueryError, match="between 0 and 100"):
        Weights(text=-1)
    with pytest.raises(QueryError, match="between 0 and 100"):
        Weights(less=math.nan)
