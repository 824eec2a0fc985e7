"""Sequences grouped by length, so that attention and pooling need no padding and no mask.

Dropout that is fast on a CPU and keeps one byte per element.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.data.batch import Ragged


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


# Elements handled at a time: small enough to stay in cache.
_CHUNK = 1 << 18
_LEVELS = 1 << 16


class _DropoutFunction(torch.autograd.Function):
    """Draws 16 random bits per element.

    On a CPU, torch's own dropout draws one double per element and keeps a float mask; with the small layers of this
    model it would take an eighth of a training step and a third of its memory.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        flat = x.reshape(-1)
        out = torch.empty_like(flat)
        keep = torch.empty(flat.shape, dtype=torch.bool)
        ctx.scale = _LEVELS / (_LEVELS - dropped)
        words = torch.empty(-(-min(_CHUNK, flat.numel()) // 4), dtype=torch.int64)
        bits = words.view(torch.int16)
        for start in range(0, flat.numel(), _CHUNK):
            part = slice(start, start + _CHUNK)
            words.random_(-(1 << 63), None)
            kept = keep[part]
            torch.ge(bits[: len(kept)], dropped - _LEVELS // 2, out=kept)
            out[part].copy_(kept.view(torch.uint8)).mul_(flat[part]).mul_(ctx.scale)
        ctx.save_for_backward(keep)
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        flat = grad.reshape(-1)
        out = torch.empty_like(flat)
        for start in range(0, flat.numel(), _CHUNK):
            part = slice(start, start + _CHUNK)
            out[part].copy_(keep[part].view(torch.uint8)).mul_(flat[part]).mul_(ctx.scale)
        return out.view(grad.shape), None


class Dropout(nn.Module):
    """Zeroes elements at random while training and scales the others to preserve the mean.

    Args:
        probability: that an element is zeroed; rounded to 1/65536 on a CPU.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same shape."""
        if not self.training or self.probability == 0:
            return x
        if x.device.type != "cpu":
            return functional.dropout(x, self.probability)
        out: Tensor = _DropoutFunction.apply(x, round(self.probability * _LEVELS))  # type: ignore[no-untyped-call]
        return out

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        return f"{self.probability}"


def drop_rows(sequences: Ragged, probability: float) -> Ragged:
    """Drop each row with a probability; every sequence keeps at least one row, drawn at random.

    Each step then pools other frames of a clip, as if the clip had been cut differently.
    """
    total, lengths = len(sequences.values), sequences.lengths
    keep = torch.rand(total) >= probability  # (rows,) drawn on the CPU, so that all devices keep the same rows
    kept_always = (torch.rand(len(lengths)) * lengths).long().clamp(max=lengths - 1)
    keep[lengths.cumsum(0) - lengths + kept_always] = True
    owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    counts = torch.bincount(owner[keep], minlength=len(lengths))
    return Ragged(sequences.values[keep.to(sequences.values.device)], counts)
