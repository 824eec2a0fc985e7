"""A ring buffer of the recent samples of one modality."""

from typing import Any

import torch
from torch import Tensor, nn


class RingBuffer(nn.Module):
    """The last ``size`` samples of one modality: input features, detached embeddings, ids.

    Everything is a buffer, so ``state_dict`` holds the whole ring, and training resumes from it bit for bit. The first
    batch sets the widths of the rows. The ring keeps a running sum of its feature rows (in float64, so that it does not
    drift), so connectivity never reads the ring twice.

    Args:
        size: number of samples to keep.

    Example:
        >>> ring = RingBuffer(3)
        >>> rows = torch.eye(2)
        >>> ring.push(rows, rows, None).tolist(), ring.filled
        ([0, 1], 2)
        >>> ring.push(rows, rows, None).tolist(), ring.filled
        ([2, 0], 3)
    """

    features: Tensor
    embeddings: Tensor
    squares: Tensor
    total: Tensor
    ids: Tensor
    written: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("features", torch.zeros(size, 0))
        self.register_buffer("embeddings", torch.zeros(size, 0))
        self.register_buffer("squares", torch.zeros(size))  # (size,) inner product of each feature row with itself
        self.register_buffer("total", torch.zeros(0, dtype=torch.float64))  # (Dx,) sum of the feature rows
        self.register_buffer("ids", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("written", torch.zeros((), dtype=torch.int64))
        self._count: int | None = 0  # `written` without a device synchronisation; None after loading

    @property
    def count(self) -> int:
        """Rows ever written."""
        if self._count is None:
            self._count = int(self.written)
        return self._count

    @property
    def filled(self) -> int:
        """Rows in the ring."""
        return min(self.count, self.size)

    def check(self, label: str, rows: Tensor | None, held: Tensor) -> None:
        """Raise if rows do not fit those in the queue, before anything changes."""
        width = 0 if rows is None else rows.shape[1]
        if self.count and width != held.shape[1]:
            raise ValueError(
                f"{label} has {width} channels but the queue holds rows of {held.shape[1]}; call reset() before "
                "switching to other data"
            )

    @torch.inference_mode(False)  # training cannot use buffers created in inference mode
    def push(self, features: Tensor | None, embeddings: Tensor, ids: Tensor | None) -> Tensor:
        """Write a batch over the oldest rows; returns the slots (min(N, size),) of its last rows.

        Features (N, Dx) and embeddings (N, D) are unit rows. Features are None if connectivity is not used. Samples
        without ids never equal another.
        """
        device, rows = embeddings.device, len(embeddings)
        if self.ids.device != device:
            self.to(device)
        if ids is None:  # count up from the smallest integer, so that these ids match no others
            ids = torch.arange(rows, device=device) + (torch.iinfo(torch.int64).min + self.count)
        self._allocate(features, embeddings)
        kept = min(rows, self.size)
        first = (self.count + rows - kept) % self.size
        before_the_end = min(kept, self.size - first)
        # The batch is one stretch of the ring, or two if it wraps around the end.
        for place, part in ((first, slice(0, before_the_end)), (0, slice(before_the_end, kept))):
            if part.start == part.stop:
                continue
            stretch = slice(place, place + part.stop - part.start)
            if features is not None:
                self._replace_features(stretch, features[-kept:][part])
            self.embeddings[stretch] = embeddings[-kept:][part].detach()
            self.ids[stretch] = ids[-kept:][part]
        slots = torch.arange(self.count + rows - kept, self.count + rows, device=device) % self.size
        self.written += rows
        self._count = self.count + rows
        return slots

    def older(self, rows: int) -> tuple[slice, ...]:
        """The stretches of the ring that were not written with the last ``rows`` rows.

        Example:
            >>> ring, rows = RingBuffer(5), torch.eye(2)
            >>> for _ in range(3):
            ...     _ = ring.push(rows, rows, None)
            >>> ring.older(2)
            (slice(1, 4, None),)
        """
        first, last = (self.count - rows) % self.size, self.count % self.size or self.size
        stretches = (slice(last, first),) if last < first else (slice(0, first), slice(last, self.filled))
        return tuple(part for part in stretches if part.start < part.stop)

    def _allocate(self, features: Tensor | None, embeddings: Tensor) -> None:
        if self.embeddings.shape[1] != embeddings.shape[1]:
            self.embeddings = self._ring_for(embeddings)
        if features is not None and self.features.shape[1] != features.shape[1]:
            self.features = self._ring_for(features)
            self.squares = features.new_zeros(self.size)
            self.total = features.new_zeros(features.shape[1], dtype=torch.float64)

    def _ring_for(self, rows: Tensor) -> Tensor:
        try:
            return torch.zeros(self.size, rows.shape[1], dtype=rows.dtype, device=rows.device)
        except RuntimeError as error:
            needed = self.size * rows.shape[1] * rows.element_size() / 2**30
            raise ValueError(
                f"a queue of {self.size:,} rows with {rows.shape[1]:,} channels needs {needed:,.1f} GB, which the "
                "machine does not have; lower queue_size"
            ) from error

    def _replace_features(self, stretch: slice, rows: Tensor) -> None:
        rows = rows.to(self.features.dtype)
        exact = torch.float64
        self.total += rows.sum(0, dtype=exact) - self.features[stretch].sum(0, dtype=exact)  # empty slots hold zeros
        self.features[stretch] = rows
        self.squares[stretch] = rows.square().sum(1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("features", "embeddings", "squares", "total"):
            stored, buffer = state_dict.get(prefix + name), self._buffers[name]
            if buffer is not None and isinstance(stored, Tensor) and stored.ndim == buffer.ndim:
                if name != "total" and len(stored) != self.size:
                    continue  # the size differs: let torch name the mismatch
                setattr(self, name, torch.empty_like(stored, device=buffer.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._count = None
