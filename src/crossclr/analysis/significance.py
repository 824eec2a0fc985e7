"""Whether a difference between two losses is more than the luck of seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Comparison:
    """A loss against a rival over the same seeds.

    Args:
        rival: the rival's name.
        difference: mean over seeds of (loss - rival).
        relative: the same in percent of the rival's mean.
        p: two-sided p-value of the paired t-test; NaN where it cannot be computed (one seed).
    """

    rival: str
    difference: float
    relative: float
    p: float

    @property
    def shown(self) -> str:
        """The p-value as a table shows it.

        Example:
            >>> Comparison("x", 1.0, 1.0, 0.00001).shown, Comparison("x", 1.0, 1.0, 0.04).shown
            ('< 0.001', '0.040')
        """
        return "< 0.001" if self.p < 0.001 else f"{self.p:.3f}"

    @property
    def sure(self) -> str:
        """The p-value in words.

        Example:
            >>> Comparison("x", 1.0, 1.0, 0.00001).sure, Comparison("x", 1.0, 1.0, 0.04).sure
            ('p < 0.001', 'p = 0.040')
        """
        return f"p {self.shown}" if self.p < 0.001 else f"p = {self.shown}"

    def words(self) -> str:
        """The difference in words, with its p-value."""
        meant = "n.s." if not self.p < 0.05 else "significant"
        return f"{self.difference:+.2f} against {self.rival} ({self.relative:+.1f}%, {self.sure}, {meant})"


def paired(values: Sequence[float], rival: Sequence[float], name: str = "rival") -> Comparison:
    """Paired t-test over seeds.

    Seeds decide the initial weights and the order of samples, which are the same for both losses, so runs of one seed
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
    spread = float((a - b).std(ddof=1)) if len(a) > 1 else float("nan")
    if len(a) < 2:
        p = float("nan")
    elif spread == 0:
        p = 1.0 if difference == 0 else 0.0
    else:
        p = float(stats.ttest_rel(a, b).pvalue)
    return Comparison(name, difference, relative, p)


def against_best(name: str, values: Mapping[str, Sequence[float]], rivals: Sequence[str]) -> Comparison | None:
    """A loss against the rival with the best mean; None without rivals.

    Args:
        name: the loss.
        values: for each loss its figure for each seed; higher is better.
        rivals: the losses that it is compared with.
    """
    others = [rival for rival in rivals if rival != name and rival in values]
    if not others:
        return None
    best = max(others, key=lambda rival: float(np.mean(values[rival])))
    return paired(values[name], values[best], best)
