"""The recent samples of each modality, in ring buffers."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from crossclr.losses.base import EmbeddedBatch


class RingBuffer(nn.Module):
    """The last ``size`` samples of one modality: input features, detached embeddings, ids.

    Everything is a buffer, so training resumes from ``state_dict`` bit for bit. The first batch sets the widths of the
    rows. The running sum of the feature rows (in float64, so that it does not drift) makes connectivity cheap.

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
        self.count = self.filled = 0  # rows ever written and rows in the ring, without a device synchronisation

    @torch.inference_mode(False)  # training cannot use buffers created in inference mode
    def push(self, features: Tensor, embeddings: Tensor, ids: Tensor | None) -> Tensor:
        """Write a batch over the oldest rows; returns the slots (min(N, size),) of its last rows.

        Features (N, Dx) and embeddings (N, D) are unit rows. Features have no columns if connectivity is not used.
        Samples without ids never equal another.
        """
        device, rows, count = embeddings.device, len(embeddings), self.count
        if self.ids.device != device:
            self.to(device)
        if ids is None:  # count up from the smallest integer, so that these ids match no others
            ids = torch.arange(rows, device=device) + (torch.iinfo(torch.int64).min + count)
        for name, new in (("embeddings", embeddings), ("features", features)):
            if getattr(self, name).shape[1] == new.shape[1]:
                continue
            try:
                setattr(self, name, new.new_zeros(self.size, new.shape[1]))
            except RuntimeError as error:
                needed = self.size * new.shape[1] * new.element_size() / 2**30
                raise ValueError(
                    f"a queue of {self.size:,} rows with {new.shape[1]:,} channels needs {needed:,.1f} GB, which the "
                    "machine does not have; lower queue_size"
                ) from error
            if name == "features":
                self.squares = new.new_zeros(self.size)
                self.total = new.new_zeros(new.shape[1], dtype=torch.float64)
        kept = min(rows, self.size)
        first = (count + rows - kept) % self.size
        before_the_end = min(kept, self.size - first)
        # The batch is one stretch of the ring, or two if it wraps around the end.
        for start, stretch in ((first, slice(0, before_the_end)), (0, slice(before_the_end, kept))):
            slots = slice(start, start + stretch.stop - stretch.start)
            new, old = features[-kept:][stretch].to(self.features.dtype), self.features[slots]  # empty slots hold zeros
            self.total += new.sum(0, dtype=torch.float64) - old.sum(0, dtype=torch.float64)
            self.features[slots], self.squares[slots] = new, new.square().sum(1)
            self.embeddings[slots] = embeddings[-kept:][stretch].detach()
            self.ids[slots] = ids[-kept:][stretch]
        self.written += rows
        self.count, self.filled = count + rows, min(count + rows, self.size)
        return torch.arange(self.count - kept, self.count, device=device) % self.size

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
        return tuple(stretch for stretch in stretches if stretch.start < stretch.stop)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("features", "embeddings", "squares", "total"):
            stored, buffer = state_dict.get(prefix + name), self._buffers[name]
            if buffer is not None and isinstance(stored, Tensor) and stored.ndim == buffer.ndim:
                if name != "total" and len(stored) != self.size:
                    continue  # the size differs: let torch name the mismatch
                setattr(self, name, torch.empty_like(stored, device=buffer.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.count = int(self.written)
        self.filled = min(self.count, self.size)


class Queues(nn.ModuleDict):
    """A :class:`RingBuffer` for each modality, created when its name first occurs, in a call or in a loaded state."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def of(self, name: str) -> RingBuffer:
        """The queue of that modality."""
        if name not in self:
            with torch.inference_mode(False):  # training cannot use buffers created in inference mode
                self[name] = RingBuffer(self.size)
        return cast(RingBuffer, self[name])

    def check(self, batch: EmbeddedBatch) -> None:
        """Raise if rows do not fit those in the queues, before anything changes."""
        for name in self:
            queue, present = self.of(name), batch.present.get(name)
            if name not in batch.embeddings or not queue.count or (present is not None and not bool(present.any())):
                continue
            for label, rows, held in (
                (batch.inputs.feature_labels[name], batch.features.get(name), queue.features),
                (batch.inputs.labels[name], batch.embeddings[name], queue.embeddings),
            ):
                width = 0 if rows is None else rows.shape[1]
                if width != held.shape[1]:
                    raise ValueError(
                        f"{label} has {width} channels but the queue holds rows of {held.shape[1]}; call reset() "
                        "before switching to other data"
                    )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # in the stored order, so that a resumed training stores the same bytes
        stored = dict.fromkeys(key[len(prefix) :].split(".")[0] for key in state_dict if key.startswith(prefix))
        for name in set(self) - set(stored):
            del self[name]
        for name in stored:
            self.of(name)
        super()._load_from_state_dict(state_dict, prefix, *args)
