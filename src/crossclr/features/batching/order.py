"""The order of samples in an epoch, and the part of a batch that each process reads."""

import numpy as np


def epoch_order(count: int, seed: int, epoch: int) -> list[int]:
    """The order of an epoch; it depends on these three numbers only.

    Example:
        >>> epoch_order(4, seed=0, epoch=1) == epoch_order(4, seed=0, epoch=1), sorted(epoch_order(4, 0, 1))
        (True, [0, 1, 2, 3])
    """
    order: list[int] = np.random.default_rng([seed, epoch]).permutation(count).tolist()
    return order


def bounds(samples: int, number: int, count: int) -> tuple[int, int]:
    """First sample, and the one after the last, of part ``number`` of ``count`` equal parts of a batch."""
    return number * samples // count, (number + 1) * samples // count
