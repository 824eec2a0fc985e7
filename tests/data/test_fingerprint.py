"""A run notices that its data changed."""

import numpy as np
import pytest

from crossclr.data.fingerprint import SAMPLED, data_changes, fingerprint
from tests.support.pairs import pair_data

A, B = np.random.default_rng(0).normal(size=(2, 200, 6)).astype(np.float32)


def data(a=A, b=B, keys=None, **splits):
    names = keys or [f"k{row}" for row in range(len(a))]
    return pair_data(a, b, ids=names, splits=splits or {"train": names[:150], "test": names[150:]})


def test_equal_data_has_no_changes():
    stored = fingerprint(data(), ["train", "test"])
    assert data_changes(stored, data()) == []
    assert len(stored["train"]["sampled"]) == SAMPLED
    assert data_changes(stored, data(A + np.float32(1e-9))) == []  # rounding of another machine


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (data(b=B[::-1].copy()), "b of .* of 32 sampled samples changed"),
        (data(a=A * 1.01), "a of 32 of 32"),
        (data(a=np.roll(A, 1, axis=1)), "a of 32 of 32"),
        (data(A[:-1], B[:-1]), "split 'test': it has 49 samples, not 50"),
        (data(keys=[f"x{row}" for row in range(200)]), "other keys"),
        (data(train=[f"k{row}" for row in range(150)][::-1], test=[f"k{row}" for row in range(150, 200)]), "order"),
        (data(train=[f"k{row}" for row in range(150)]), "there is no split 'test'"),
    ],
)
def test_changes_are_named(changed, words):
    import re

    assert re.search(words, "; ".join(data_changes(fingerprint(data(), ["train", "test"]), changed)))


def test_one_wrong_sample_among_the_sampled_is_noticed():
    stored = fingerprint(data(), ["test"])
    wrong = B.copy()
    wrong[150, 3] += 0.01
    assert data_changes(stored, data(b=wrong)) == ["split 'test': b of 1 of 32 sampled samples changed (first: 'k150')"]
