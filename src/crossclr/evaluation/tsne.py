"""t-SNE of up to a thousand points in numpy: fast enough for a map, and nothing large to import."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]
EXAGGERATION, EXAGGERATED = 12.0, 100  # how much, and in how many of the first steps


def tsne(rows: Rows, perplexity: float, steps: int = 400) -> Rows:
    """(points, 2) positions in which near points stay near (van der Maaten and Hinton, 2008).

    The start is the plane of the two main components, so equal rows give equal positions.

    Args:
        rows: (points, dim) what to arrange.
        perplexity: roughly the number of neighbours that count.
        steps: steps of gradient descent.

    Example:
        >>> tsne(np.eye(30, dtype=np.float32), perplexity=5).shape
        (30, 2)
    """
    shares = neighbour_shares(rows, perplexity)  # (points, points)
    places = main_components(rows, 2)
    places = (1e-4 * places / max(float(places[:, 0].std()), 1e-12)).astype(np.float32)
    rate = max(len(rows) / EXAGGERATION / 4, 50.0)
    speed, gains = np.zeros_like(places), np.ones_like(places)
    for step in range(steps):
        early = step < EXAGGERATED
        slope = _gradient(shares * EXAGGERATION if early else shares, places)
        gains = np.maximum(np.where(speed * slope < 0, gains + 0.2, gains * 0.8), 0.01)
        speed = (0.5 if early else 0.8) * speed - rate * gains * slope
        places = places + speed
    return places


def neighbour_shares(rows: Rows, perplexity: float) -> Rows:
    """(points, points) joint probabilities of neighbours; each point's own have the given perplexity."""
    distances = np.maximum(_distances(rows), 0.0)
    np.fill_diagonal(distances, np.inf)
    distances -= distances.min(1, keepdims=True)  # the same shares, without underflow
    low, high = np.zeros(len(rows)), np.full(len(rows), np.inf)
    precision = np.ones(len(rows))
    for _ in range(40):  # bisection
        weights = np.exp(-distances * precision[:, None])
        total = weights.sum(1)
        finite = np.where(np.isfinite(distances), distances, 0.0)
        entropy = np.log(total) + precision * (weights * finite).sum(1) / total
        wide = entropy > np.log(perplexity)
        low, high = np.where(wide, precision, low), np.where(wide, high, precision)
        precision = np.where(np.isinf(high), precision * 2, (low + high) / 2)
    own = weights / total[:, None]
    joint: Rows = ((own + own.T) / (2 * len(rows))).astype(np.float32)
    return np.maximum(joint, np.float32(1e-12))


def main_components(rows: Rows, count: int) -> Rows:
    """(points, count) coordinates along the directions of largest variance; missing directions are zeros."""
    centred = rows - rows.mean(0)
    _, directions = np.linalg.eigh(centred.T @ centred)  # in rising order of variance
    found: Rows = (centred @ directions[:, ::-1][:, :count]).astype(np.float32)
    return np.pad(found, ((0, 0), (0, count - found.shape[1])))


def _gradient(shares: Rows, places: Rows) -> Rows:
    """The gradient of the Kullback-Leibler divergence by the positions."""
    closeness = _distances(places, plus=1.0)
    np.reciprocal(closeness, out=closeness)
    np.fill_diagonal(closeness, 0.0)
    pull = closeness * np.float32(-1 / closeness.sum())
    pull += shares
    pull *= closeness
    slope: Rows = 4 * (pull.sum(1, keepdims=True) * places - pull @ places)
    return slope


def _distances(rows: Rows, plus: float = 0.0) -> Rows:
    """(points, points) squared distances plus a constant, as one matrix product."""
    squares, ones = np.square(rows).sum(1, keepdims=True), np.ones((len(rows), 1), dtype=rows.dtype)
    found: Rows = np.hstack([-2 * rows, squares + np.float32(plus), ones]) @ np.hstack([rows, ones, squares]).T
    return found
