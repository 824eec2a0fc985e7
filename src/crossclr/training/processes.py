"""Devices and processes: one batch is shared out by videos, and every process sees the embeddings of all.

All processes read the same batch, so clip counts, ids and input features are known everywhere and only embeddings
travel. Each process computes the same loss on the whole batch and sends gradients through its own rows; the average
that data-parallel training takes over processes is undone on those rows, so the sum is the gradient of one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from crossclr.features import Batch, Ragged, Side

if TYPE_CHECKING:  # it takes two seconds to import, which only those who train should pay
    from lightning_fabric import Fabric

_CLIP_LEVEL = ("clip_emb", "sent_emb")


def make_fabric(accelerator: str = "auto", devices: int = 1, precision: str = "32-true") -> Fabric:
    """The device, the precision and the processes of a run, launched.

    Example:
        >>> make_fabric("cpu").world_size
        1
    """
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.precision.amp import MixedPrecision

    class Mixed(MixedPrecision):
        """Leaves the batch alone: autocast decides inside the model, operation by operation."""

        def convert_input(self, data: Any) -> Any:
            return data

    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    plugins: list[Any] = [Mixed("bf16-mixed", device=accelerator)] if precision == "bf16-mixed" else []
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        precision=None if plugins else "32-true",
        plugins=plugins,
    )
    fabric.launch()
    return fabric


def bounds(videos: int, rank: int, world: int) -> tuple[int, int]:
    """First video and the one after the last that a process works on.

    Example:
        >>> [bounds(5, rank, 2) for rank in range(2)]
        [(0, 2), (2, 5)]
    """
    return rank * videos // world, (rank + 1) * videos // world


def share(batch: Batch, rank: int, world: int) -> Batch:
    """The videos of one process. Where there are fewer videos than processes, one without work takes the first."""
    if world == 1:
        return batch
    start, stop = bounds(len(batch.keys), rank, world)
    if start == stop:
        start, stop = 0, 1
    ends = [0, *batch.clip_counts.cumsum(0).tolist()]
    clips = slice(ends[start], ends[stop])

    def part(side: Side) -> Side:
        context = None if side.context is None else _sequences(side.context, start, stop)
        return Side(_sequences(side.clips, clips.start, clips.stop), context)

    return Batch(
        a=part(batch.a),
        b=part(batch.b),
        pooled_a=batch.pooled_a[clips],
        pooled_b=batch.pooled_b[clips],
        clip_counts=batch.clip_counts[start:stop],
        ids=batch.ids[clips],
        video_ids=batch.video_ids[start:stop],
        keys=batch.keys[start:stop],
        pooled_context_a=None if batch.pooled_context_a is None else batch.pooled_context_a[start:stop],
        pooled_context_b=None if batch.pooled_context_b is None else batch.pooled_context_b[start:stop],
    )


def gather(fabric: Fabric, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    """Embeddings of the whole batch from those of each process's share; gradients flow through one's own rows."""
    world, rank = fabric.world_size, fabric.global_rank
    if world == 1:
        return dict(outputs)
    videos = [bounds(len(batch.keys), other, world) for other in range(world)]
    ends = [0, *batch.clip_counts.cumsum(0).tolist()]
    whole = {}
    idle = videos[rank][0] == videos[rank][1]
    for name, own in outputs.items():
        rows = [ends[stop] - ends[start] if name in _CLIP_LEVEL else stop - start for start, stop in videos]
        padded = own.new_zeros(max(*rows, len(own)), own.shape[1])
        padded[: len(own)] = own.detach()
        everyone = cast(Tensor, fabric.all_gather(padded))  # (world, most rows, dim)
        live = own[:0] if idle else own.view_as(own)  # a node of its own: inside the model this tensor has other uses
        if live.requires_grad and not idle:
            live.register_hook(lambda gradient: gradient * world)  # type: ignore[no-untyped-call]
        parts = [live if other == rank else everyone[other, :count] for other, count in enumerate(rows)]
        # an output that the loss does not use must still take part in the exchange of gradients
        whole[name] = torch.cat(parts) + 0 * own.sum()
    return whole


def _sequences(ragged: Ragged, start: int, stop: int) -> Ragged:
    offsets = ragged.offsets
    return Ragged(ragged.values[int(offsets[start]) : int(offsets[stop])], ragged.lengths[start:stop])
