"""Named modalities give the numbers that the code for two modalities gave, value and gradient, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.losses.two_modalities import CASES, STORED, results


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_the_stored_numbers(case: str, dtype: str) -> None:
    stored = np.load(STORED)
    found = results(case, getattr(torch, dtype))
    assert f"{case}/{dtype}/{len(found) - 1}" in stored
    assert f"{case}/{dtype}/{len(found)}" not in stored
    tolerance = 1e-6 if dtype == "float64" else 2e-5  # float32: matrix products round differently on each machine
    for place, value in enumerate(found):
        wanted = stored[f"{case}/{dtype}/{place}"]
        assert value.dtype == wanted.dtype
        assert np.abs(value - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max())
