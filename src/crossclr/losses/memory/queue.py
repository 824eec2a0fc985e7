"""One ring of recent samples for each modality."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_ROWS = ("features_a", "features_b", "embeddings_a", "embeddings_b")


class PairQueue(nn.Module):
    """The last ``size`` samples of both modalities: input features, detached embeddings, ids.

    Everything is a buffer, so ``state_dict`` holds the whole queue and loading it into a new module continues
    bit by bit. The rings get their width from the first batch. Sums of the feature rows are kept as rows come and
    go (in float64, so that they do not drift): connectivity never reads the ring twice.

    Args:
        size: how many samples are kept.

    Example:
        >>> queue = PairQueue(3)
        >>> rows = torch.eye(2)
        >>> slots = queue.push(rows, rows, rows, rows, None)
        >>> slots.tolist(), queue.filled
        ([0, 1], 2)
        >>> queue.push(rows, rows, rows, rows, None).tolist(), queue.filled
        ([2, 0], 3)
    """

    features_a: Tensor
    features_b: Tensor
    embeddings_a: Tensor
    embeddings_b: Tensor
    squares_a: Tensor
    squares_b: Tensor
    total_a: Tensor
    total_b: Tensor
    ids: Tensor
    written: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        for name in _ROWS:
            self.register_buffer(name, torch.zeros(size, 0))
        for side in "ab":
            self.register_buffer(f"squares_{side}", torch.zeros(size))
            self.register_buffer(f"total_{side}", torch.zeros(0, dtype=torch.float64))
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
        """Rows that the queue holds now."""
        return min(self.count, self.size)

    def reset(self) -> None:
        """Forget everything; widths may be others afterwards."""
        for name in _ROWS:
            ring = getattr(self, name)
            setattr(self, name, ring.new_zeros(self.size, 0))
        for side in "ab":
            total = getattr(self, f"total_{side}")
            setattr(self, f"total_{side}", total.new_zeros(0))
            getattr(self, f"squares_{side}").zero_()
        self.ids.zero_()
        self.written.zero_()
        self._count = 0

    def check(self, a: Tensor | None, b: Tensor | None, za: Tensor, zb: Tensor) -> None:
        """Raise where rows do not fit the ones already held, before anything is changed."""
        for name, argument, rows in zip(_ROWS, ("a", "b", "za", "zb"), (a, b, za, zb), strict=True):
            width = 0 if rows is None else rows.shape[1]
            held = getattr(self, name).shape[1]
            if self.count and width != held:
                raise ValueError(
                    f"{argument} has {width} channels but the queue holds rows of {held}; call reset() before "
                    "switching to other data"
                )

    def push(self, a: Tensor | None, b: Tensor | None, za: Tensor, zb: Tensor, ids: Tensor | None) -> Tensor:
        """Write a batch over the oldest rows.

        Args:
            a: (N, Da) unit input features, or None where connectivity is not used.
            b: (N, Db) the same for the other modality.
            za: (N, D) unit embeddings.
            zb: (N, D) the same for the other modality.
            ids: (N,) or None; samples without an id never equal another.

        Returns:
            (min(N, size),) the slots of the batch's last rows.
        """
        device, rows = za.device, len(za)
        if self.ids.device != device:
            self.to(device)
        if ids is None:  # counted up from the smallest integer, so that they equal nobody's
            ids = torch.arange(rows, device=device) + (torch.iinfo(torch.int64).min + self.count)
        kept = min(rows, self.size)
        slots = (torch.arange(self.count + rows - kept, self.count + rows, device=device)) % self.size
        for name, value in zip(_ROWS, (a, b, za, zb), strict=True):
            if value is not None:
                self._allocate(name, value)
        first = (self.count + rows - kept) % self.size
        before_the_end = min(kept, self.size - first)
        # The batch is one stretch of the ring, or two where it goes over the end.
        for place, part in ((first, slice(0, before_the_end)), (0, slice(before_the_end, kept))):
            if part.start == part.stop:
                continue
            stretch = slice(place, place + part.stop - part.start)
            for side, value in (("a", a), ("b", b)):
                if value is not None:
                    self._replace_features(side, stretch, value[-kept:][part])
            self.embeddings_a[stretch] = za[-kept:][part].detach()
            self.embeddings_b[stretch] = zb[-kept:][part].detach()
            self.ids[stretch] = ids[-kept:][part]
        self.written += rows
        self._count = self.count + rows
        return slots

    def older(self, rows: int) -> tuple[slice, ...]:
        """The stretches of the ring that were not written with the last ``rows`` rows.

        Example:
            >>> queue, rows = PairQueue(5), torch.eye(2)
            >>> for _ in range(3):
            ...     _ = queue.push(rows, rows, rows, rows, None)
            >>> queue.older(2)
            (slice(1, 4, None),)
        """
        first, last = (self.count - rows) % self.size, self.count % self.size or self.size
        stretches = (slice(last, first),) if last < first else (slice(0, first), slice(last, self.filled))
        return tuple(part for part in stretches if part.start < part.stop)

    def _allocate(self, name: str, value: Tensor) -> None:
        ring = getattr(self, name)
        if ring.shape[1] != value.shape[1]:
            setattr(self, name, value.new_zeros(self.size, value.shape[1]))
            if name.startswith("features"):
                setattr(self, f"total_{name[-1]}", value.new_zeros(value.shape[1], dtype=torch.float64))
                setattr(self, f"squares_{name[-1]}", value.new_zeros(self.size))

    def _replace_features(self, side: str, stretch: slice, rows: Tensor) -> None:
        ring, total = getattr(self, f"features_{side}"), getattr(self, f"total_{side}")
        rows = rows.to(ring.dtype)
        exact = torch.float64
        total += rows.sum(0, dtype=exact) - ring[stretch].sum(0, dtype=exact)  # empty slots hold zeros
        ring[stretch] = rows
        getattr(self, f"squares_{side}")[stretch] = rows.square().sum(1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, buffer in list(self._buffers.items()):
            stored = state_dict.get(prefix + name)
            if buffer is not None and isinstance(stored, Tensor) and stored.ndim == buffer.ndim and name != "ids":
                if stored.ndim and name not in ("total_a", "total_b") and len(stored) != self.size:
                    continue  # the size differs: let torch name the mismatch
                setattr(self, name, torch.empty_like(stored, device=buffer.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._count = None
