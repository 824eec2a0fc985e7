"""Sequences grouped by length, so that attention and pooling need no padding and no mask."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class _Permute(torch.autograd.Function):
    """Rows in another order. Its gradient is a gather; that of index_select is a slow scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grad.index_select(0, inverse), None, None


def _inverse(permutation: Tensor) -> Tensor:
    inverse = torch.empty_like(permutation)
    inverse[permutation] = torch.arange(len(permutation))
    return inverse


@dataclass(frozen=True)
class Packing:
    """The order in which sequences are stacked: shortest first, equal lengths next to each other.

    Row-wise layers see ``(total rows, dim)`` and ignore sequences; ``split`` gives attention and pooling one dense
    ``(count, length, dim)`` view per length.
    """

    groups: tuple[tuple[int, int], ...]  # (count, length) of each stack
    positions: Tensor  # (total rows,) position of each packed row in its sequence
    # (total rows,) for each packed row, its row in the original order; None if the order does not change
    rows: Tensor | None
    rows_inverse: Tensor | None  # for each original row, its packed row
    sequences: Tensor  # (sequences,) for each packed sequence its original index, and the inverse
    sequences_inverse: Tensor  # for each original sequence, its packed index

    @classmethod
    def of(cls, lengths: Tensor, device: torch.device | str = "cpu") -> "Packing":
        """The packing of sequences with these (CPU) lengths; its indices are on ``device``."""
        order = torch.argsort(lengths, stable=True)
        packed = lengths[order]
        values, counts = torch.unique_consecutive(packed, return_counts=True)
        ends = packed.cumsum(0)
        positions = torch.arange(int(lengths.sum())) - torch.repeat_interleave(ends - packed, packed)
        rows = rows_inverse = None
        if not bool((lengths[1:] >= lengths[:-1]).all()):
            starts = (lengths.cumsum(0) - lengths)[order]
            rows = torch.repeat_interleave(starts, packed) + positions
            rows_inverse = _inverse(rows).to(device)
            rows = rows.to(device)
        return cls(
            groups=tuple(zip(counts.tolist(), values.tolist(), strict=True)),
            positions=positions.to(device),
            rows=rows,
            rows_inverse=rows_inverse,
            sequences=order.to(device),
            sequences_inverse=_inverse(order).to(device),
        )

    def pack(self, x: Tensor) -> Tensor:
        """Rows (total rows, dim) from the original into the packed order."""
        if self.rows is None:
            return x
        packed: Tensor = _Permute.apply(x, self.rows, self.rows_inverse)  # type: ignore[no-untyped-call]
        return packed

    def split(self, x: Tensor) -> Iterator[Tensor]:
        """Packed rows (total rows, dim) as one (count, length, dim) view per length."""
        parts = torch.split(x, [count * length for count, length in self.groups])
        for part, (count, length) in zip(parts, self.groups, strict=True):
            yield part.view(count, length, -1)

    def split_sequences(self, x: Tensor) -> tuple[Tensor, ...]:
        """Packed (sequences, dim) as one (count, dim) view per length."""
        return torch.split(x, [count for count, _ in self.groups])

    def pack_sequences(self, x: Tensor) -> Tensor:
        """(sequences, dim) from the original into the packed order."""
        if self.rows is None:
            return x
        packed: Tensor = _Permute.apply(x, self.sequences, self.sequences_inverse)  # type: ignore[no-untyped-call]
        return packed

    def restore(self, x: Tensor) -> Tensor:
        """(sequences, dim) from the packed back into the original order."""
        if self.rows is None:
            return x
        restored: Tensor = _Permute.apply(x, self.sequences_inverse, self.sequences)  # type: ignore[no-untyped-call]
        return restored
