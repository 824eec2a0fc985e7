"""The distribution of connectivity in a data set, and the effect of each pruning threshold, in constant memory."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)
BLOCK = 4096  # rows held in memory at a time


@dataclass(frozen=True)
class InfluenceSummary:
    """Connectivity of one modality."""

    count: int
    quantiles: dict[float, float]  # connectivity at the shares 0, 0.05, 0.25, 0.5, 0.75, 0.95 and 1
    mean: float  # mean connectivity
    relative: dict[float, float]  # threshold -> share of samples with C / max C above it (the share that is pruned)
    absolute: dict[float, float]  # threshold -> share of samples with C above it
    quantile: dict[float, float]  # threshold -> share of samples above that quantile of C


def summarise_connectivity(
    scores: npt.NDArray[np.float64], thresholds: Sequence[float] = THRESHOLDS
) -> InfluenceSummary:
    """Describe the connectivity of a set of samples."""
    highest = scores.max()
    shares = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    return InfluenceSummary(
        count=len(scores),
        quantiles={share: float(np.quantile(scores, share)) for share in shares},
        mean=float(scores.mean()),
        # Without any positive connectivity, the relative rule prunes nothing.
        relative={t: float((scores / highest > t).mean()) if highest > 0 else 0.0 for t in thresholds},
        absolute={t: float((scores > t).mean()) for t in thresholds},
        quantile={t: float((scores > np.quantile(scores, t)).mean()) for t in thresholds},
    )


class PooledSpool:
    """Collects any number of pooled rows in an unnamed temporary file."""

    def __init__(self) -> None:
        self._file: Any = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the spool
        self._sum: Tensor | None = None
        self.count = 0

    def add(self, rows: npt.NDArray[np.float32]) -> None:
        """Add (samples, dim) pooled rows."""
        unit = normalize(torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32)), dim=1)
        total = unit.double().sum(0)
        self._sum = total if self._sum is None else self._sum + total
        self._file.write(unit.numpy().tobytes())
        self.count += len(unit)

    def connectivity(self) -> npt.NDArray[np.float64]:
        """(samples,) mean cosine of each row to all others, from the sum of all: `losses.influence.connectivity`."""
        if self._sum is None or self.count < 2:
            return np.zeros(self.count)
        sums = [block.double() @ self._sum - block.double().square().sum(1) for block in self._blocks()]
        return torch.cat(sums).numpy() / (self.count - 1)

    def _blocks(self) -> Iterator[Tensor]:
        dim = 0 if self._sum is None else len(self._sum)
        self._file.flush()
        self._file.seek(0)
        while data := self._file.read(BLOCK * dim * 4):
            yield torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.float32).reshape(-1, dim))
        self._file.seek(0, 2)
