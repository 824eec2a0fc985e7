"""An evenly spaced subset, so that every part of the data is represented.

Means and covariances of named modalities with gaps, gathered block by block and merged between processes.

For each pair of modalities, only the rows that have both count. Memory does not grow with the number of rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from torch import Tensor


def evenly_spaced(count: int, most: int) -> Tensor:
    """(at most ``most``,) positions among ``count``.

    Example:
        >>> evenly_spaced(10, 4).tolist(), evenly_spaced(3, 4).tolist()
        ([0, 3, 6, 9], [0, 1, 2])
    """
    return torch.arange(count) if count <= most else torch.linspace(0, count - 1, most).long()


@dataclass(frozen=True)
class PairMoments:
    """Moments of the rows that have both modalities of a pair; a modality paired with itself gives its own."""

    count: int  # number of rows
    mean_x: Tensor  # (dim_x,) mean of the first modality
    mean_y: Tensor  # (dim_y,) mean of the second modality
    products: Tensor  # (dim_x, dim_y) sum of the products of deviations from the means

    @property
    def covariance(self) -> Tensor:
        """(dim_x, dim_y), divided by the number of rows."""
        return self.products / max(self.count, 1)

    @classmethod
    def empty(cls, dim_x: int, dim_y: int) -> "PairMoments":
        """Moments of no rows."""
        return cls(0, *(torch.zeros(shape, dtype=torch.float64) for shape in (dim_x, dim_y, (dim_x, dim_y))))

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> "PairMoments":
        """Moments of paired float64 rows, (rows, dim_x) and (rows, dim_y)."""
        if not len(x):
            return cls.empty(x.shape[1], y.shape[1])
        mean_x, mean_y = x.mean(dim=0), y.mean(dim=0)
        return cls(len(x), mean_x, mean_y, (x - mean_x).T @ (y - mean_y))

    def merge(self, other: "PairMoments") -> "PairMoments":
        """Moments of the rows of both. Deviations from a mean keep their digits, however far it is from zero."""
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        shift_x, shift_y = other.mean_x - self.mean_x, other.mean_y - self.mean_y
        products = self.products + other.products
        products.addr_(shift_x, shift_y, alpha=self.count * other.count / count)
        share = other.count / count
        return PairMoments(count, self.mean_x + share * shift_x, self.mean_y + share * shift_y, products)


class Moments:
    """Means and covariances of named modalities, over the rows that have them."""

    def __init__(self, dims: Mapping[str, int]) -> None:
        if len(dims) < 2:
            raise ValueError(f"a common space needs at least two modalities, got {list(dims)}")
        self.dims = dict(dims)
        self._pairs = {
            (x, y): PairMoments.empty(dims[x], dims[y]) for x, y in combinations_with_replacement(self.dims, 2)
        }

    @property
    def names(self) -> Sequence[str]:
        """The modalities."""
        return tuple(self.dims)

    def add(self, rows: Mapping[str, Tensor], present: Mapping[str, Tensor] | None = None) -> None:
        """Add a block of samples.

        Args:
            rows: (samples, channels) of each modality; row i of all modalities belongs to one sample.
            present: (samples,) bool for each modality that has gaps. Absent rows may hold anything, NaN included.
        """
        values, masks = self._checked(rows, present or {})
        for x, y in self._pairs:
            both = masks[x] & masks[y]
            block = PairMoments.of(values[x][both], values[y][both])
            self._pairs[x, y] = self._pairs[x, y].merge(block)

    @classmethod
    def merged(cls, parts: "Iterable[Moments]") -> "Moments":
        """Moments of all rows of several parts, such as shards, processes or folds."""
        first, *others = parts
        found = cls(first.dims)
        found._pairs = dict(first._pairs)
        for other in others:
            if other.dims != first.dims:
                raise ValueError(f"cannot merge moments of {first.dims} channels with moments of {other.dims}")
            found._pairs = {pair: found._pairs[pair].merge(other._pairs[pair]) for pair in found._pairs}
        return found

    def count(self, x: str, y: str | None = None) -> int:
        """Number of rows that have one modality, or both."""
        return self._pair(x, y or x)[0].count

    def mean(self, name: str) -> Tensor:
        """(channels,) mean over the rows that have the modality."""
        return self._pairs[name, name].mean_x

    def covariance(self, x: str, y: str) -> Tensor:
        """(channels of x, channels of y) covariance over the rows that have both, divided by their number."""
        pair, turned = self._pair(x, y)
        return pair.covariance.T if turned else pair.covariance

    def _pair(self, x: str, y: str) -> tuple[PairMoments, bool]:
        turned = (x, y) not in self._pairs
        return self._pairs[(y, x) if turned else (x, y)], turned

    def _checked(
        self, rows: Mapping[str, Tensor], present: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        shapes = {name: tuple(value.shape) for name, value in rows.items()}
        samples = {shape[0] for shape in shapes.values()}
        if {name: shape[-1] for name, shape in shapes.items()} != self.dims or len(samples) != 1:
            raise ValueError(f"expected paired rows with {self.dims} channels, got shapes {shapes}")
        if unknown := set(present) - set(rows):
            raise ValueError(f"present names {sorted(unknown)}, but the modalities are {list(self.dims)}")
        everywhere = torch.ones(samples.pop(), dtype=torch.bool)
        masks = {name: present.get(name, everywhere) for name in self.dims}
        values = {name: rows[name].to(torch.float64) for name in self.dims}
        for name, value in values.items():
            bad = ~torch.isfinite(value) & masks[name].unsqueeze(1)
            if bool(bad.any()):
                row, channel = bad.nonzero()[0].tolist()
                raise ValueError(
                    f"training sample {self.count(name) + row} holds NaN or infinity in modality {name!r}, channel "
                    f"{channel}; run `crossclr check` to find it"
                )
        return values, masks
