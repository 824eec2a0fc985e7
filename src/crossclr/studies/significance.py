"""Whether a difference between two losses is more than chance: paired t-tests and bootstrap intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

DRAWS, CONFIDENCE = 2_000, 95.0
MIN_SEEDS = 3  # of a test; two seeds have one degree of freedom


@dataclass(frozen=True)
class PairedTest:
    """A loss against a rival over the same seeds.

    Example:
        >>> one, other = PairedTest("x", 1.0, 1.0, 0.00001), PairedTest("x", 1.0, 1.0, 0.04)
        >>> one.shown, other.shown, one.p_in_words, other.p_in_words
        ('< 0.001', '0.040', 'p < 0.001', 'p = 0.040')
    """

    rival: str  # the rival's name
    difference: float  # mean over seeds of (loss - rival)
    relative: float  # the difference in percent of the rival's mean
    p: float  # two-sided p-value of the paired t-test; NaN for fewer than three seeds

    @property
    def shown(self) -> str:
        """The p-value as a table shows it."""
        if math.isnan(self.p):
            return "–"
        return "< 0.001" if self.p < 0.001 else f"{self.p:.3f}"

    @property
    def p_in_words(self) -> str:
        """The p-value in words."""
        if math.isnan(self.p):
            return "too few seeds for a test"
        return f"p {self.shown}" if self.p < 0.001 else f"p = {self.shown}"

    def words(self) -> str:
        """The difference in words, with its p-value."""
        verdict = "" if math.isnan(self.p) else ", significant" if self.p < 0.05 else ", n.s."
        return f"{self.difference:+.2f} against {self.rival} ({self.relative:+.1f}%, {self.p_in_words}{verdict})"


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Example:
        >>> str(Interval(-0.31, 1.24))
        '[-0.3, +1.2]'
    """

    low: float
    high: float

    def __str__(self) -> str:
        return f"[{self.low:+.1f}, {self.high:+.1f}]"


def paired(values: Sequence[float], rival: Sequence[float], name: str = "rival") -> PairedTest:
    """Paired t-test over at least three seeds; fewer give a difference without a p-value.

    A seed decides the initial weights and the order of the samples. Both losses share them, so trainings of one seed
    form a pair.

    Example:
        >>> found = paired([3.0, 4.0, 5.0], [1.0, 2.5, 2.5])
        >>> round(found.difference, 2), round(found.p, 3)
        (2.0, 0.02)
    """
    if len(values) != len(rival):
        raise ValueError(f"{len(values)} runs cannot be paired with {len(rival)}; both need the same seeds")
    a, b = np.asarray(values, dtype=np.float64), np.asarray(rival, dtype=np.float64)
    difference = float((a - b).mean())
    relative = 100 * difference / float(b.mean()) if b.mean() else float("nan")
    if len(a) < MIN_SEEDS:
        p = float("nan")
    elif (a - b).std() == 0:
        p = 1.0 if difference == 0 else 0.0
    else:
        p = float(stats.ttest_rel(a, b).pvalue)
    return PairedTest(name, difference, relative, p)


def against_best(name: str, values: Mapping[str, Sequence[float]], rivals: Sequence[str]) -> PairedTest | None:
    """Compare a loss with the rival that has the best mean; ``values`` has a metric of each seed, higher is better."""
    others = [rival for rival in rivals if rival != name and rival in values]
    if not others:
        return None
    best = max(others, key=lambda rival: float(np.mean(values[rival])))
    return paired(values[name], values[best], best)


def bootstrap_interval(values: npt.NDArray[Any], rival: npt.NDArray[Any]) -> Interval:
    """95% confidence interval of the mean difference, by resampling seeds and queries with replacement.

    Both are (seeds, queries) metrics of the same queries, such as 100 for a hit and 0 for a miss.

    Example:
        >>> found = bootstrap_interval(np.ones((3, 50)), np.zeros((3, 50)))
        >>> found.low, found.high
        (1.0, 1.0)
    """
    if values.shape != rival.shape:
        raise ValueError(f"both need the same seeds and queries, got {values.shape} and {rival.shape}")
    differences = values.astype(np.float64) - rival
    seeds, queries = differences.shape
    rng = np.random.default_rng(0)
    means = np.empty(DRAWS)
    for draw in range(DRAWS):
        mean_of_seeds = np.bincount(rng.integers(seeds, size=seeds), minlength=seeds) @ differences / seeds
        means[draw] = np.bincount(rng.integers(queries, size=queries), minlength=queries) @ mean_of_seeds / queries
    low, high = np.percentile(means, [(100 - CONFIDENCE) / 2, (100 + CONFIDENCE) / 2])
    return Interval(float(low), float(high))
