"""Unit vectors and cosines in float64, for oracles."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def unit(rows: ArrayLike) -> NDArray[Any]:
    """Rows (or one vector) of length one; zero rows stay zero."""
    values = np.asarray(rows, dtype=np.float64)
    lengths = np.sqrt((values * values).sum(axis=-1, keepdims=True))
    return values / np.where(lengths > 0, lengths, 1.0)


def cosines(x: ArrayLike, y: ArrayLike) -> NDArray[Any]:
    """The cosine of each row of ``x`` with each row of ``y``, (rows of x, rows of y)."""
    product: NDArray[Any] = unit(x) @ unit(y).T
    return product


def cosine(x: ArrayLike, y: ArrayLike) -> float:
    """The cosine of two vectors."""
    return float(unit(x) @ unit(y))
