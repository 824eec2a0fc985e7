"""Devices and processes: each process embeds its own videos and gets the embeddings of all.

Embeddings, pooled features and ids are gathered in the order of the videos. So every process computes the loss of the
whole batch (the processes share that work, see `losses.distributed`) and keeps the
same queue; gradients flow through its own rows. The mean that data-parallel training takes over processes is undone on
those rows, so that the result is the gradient of one process.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from crossclr.data import Batch, Inputs, Ragged
from crossclr.losses.distributed import count_rows, gather_rows

if TYPE_CHECKING:  # importing it takes as long as importing PyTorch
    from lightning_fabric import Fabric


class OneProcess:
    """The methods of `Fabric` that training uses, for one process on the CPU."""

    world_size, global_rank, is_global_zero, device = 1, 0, True, torch.device("cpu")

    def setup(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Both, on the device."""
        return model.to(self.device), optimiser

    def backward(self, loss: Tensor) -> None:
        """Compute gradients."""
        loss.backward()  # type: ignore[no-untyped-call]

    def clip_gradients(self, _: nn.Module, optimiser: torch.optim.Optimizer, max_norm: float) -> None:
        """Scale the gradients of everything that is trained down to this norm."""
        trained = [weights for group in optimiser.param_groups for weights in group["params"]]
        nn.utils.clip_grad_norm_(trained, max_norm, error_if_nonfinite=True)

    def broadcast(self, value: Any) -> Any:
        """The value of the first process."""
        return value

    def all_gather(self, value: Tensor) -> Tensor:
        """The values of all processes, which for one process is its own."""
        return value

    def barrier(self) -> None:
        """Wait for the other processes: there are none."""


def make_fabric(accelerator: str = "auto", devices: int = 1, precision: str = "32-true", nodes: int = 1) -> Fabric:
    """The device, the precision and the processes of a run, launched.

    Under ``torchrun`` the processes exist already and torchrun decides their number. Otherwise ``devices`` processes
    start on this machine. With several machines, run the command on each of them with ``MASTER_ADDR``, ``MASTER_PORT``
    and ``NODE_RANK`` set.

    Example:
        >>> make_fabric("cpu").world_size
        1
    """
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    if launch() is None and accelerator == "cpu" and devices * nodes == 1 and precision == "32-true":
        return cast("Fabric", OneProcess())
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.precision.amp import MixedPrecision

    class Mixed(MixedPrecision):
        """Does not convert the batch: autocast decides inside the model, operation by operation."""

        def convert_input(self, data: Any) -> Any:
            return data

    if launch() is not None:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
        if devices * nodes > 1:
            meet("nccl" if accelerator == "cuda" else "gloo")
    elif nodes > 1 and not {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK"} <= set(os.environ):
        raise ValueError(
            f"training.nodes is {nodes}: set MASTER_ADDR, MASTER_PORT and NODE_RANK (0 to {nodes - 1}) and run the "
            "same command on each machine, or start the processes with torchrun"
        )
    plugins: list[Any] = [Mixed("bf16-mixed", device=accelerator)] if precision == "bf16-mixed" else []
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if devices * nodes > 1 else "auto",
        precision=None if plugins else "32-true",
        plugins=plugins,
    )
    fabric.launch()
    return fabric


def launch() -> str | None:
    """A name for this call of ``torchrun`` that survives restarts of its processes; None without torchrun."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    if name is None or "LOCAL_WORLD_SIZE" not in os.environ:
        return None
    return f"{name} {os.getppid()}" if name == "none" else name


def meet(backend: str, patience: float = 600.0) -> None:
    """Connect the processes of torchrun through a store of their own.

    torchrun keeps one store for all its restarts, and this store still holds the addresses of processes that died. So
    the first process opens a new store and leaves its address in the old one; the others wait for an address that
    answers.
    """
    shared, rank, world = next(rendezvous("env://"))
    host, deadline = os.environ["MASTER_ADDR"], time.monotonic() + patience
    if rank == 0:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        shared.set("crossclr/meeting", f"{host} {store.port}")
    else:
        while True:
            host, port = shared.get("crossclr/meeting").decode().split()
            try:
                socket.create_connection((host, int(port)), timeout=5).close()
                break
            except OSError as error:  # the address of a first process that died
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"the first process did not open a store at {host} within {patience:g} s"
                    ) from error
                time.sleep(0.05)
        store = dist.TCPStore(host, int(port), is_master=False)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)


def part(batch: Batch, start: int, stop: int) -> Batch:
    """Some of the videos of a batch."""
    if (start, stop) == (0, len(batch.keys)):
        return batch
    ends = [0, *batch.clip_counts.cumsum(0).tolist()]
    clips, videos = slice(ends[start], ends[stop]), slice(start, stop)
    has = batch.present_videos()

    def cut(name: str, inputs: Inputs) -> Inputs:
        context = None if inputs.context is None else _sequences(inputs.context, has[name], videos)
        return Inputs(_sequences(inputs.clips, batch.present[name], clips), context)

    return Batch(
        inputs={name: cut(name, inputs) for name, inputs in batch.inputs.items()},
        present={name: mask[clips] for name, mask in batch.present.items()},
        pooled={name: rows[clips] for name, rows in batch.pooled.items()},
        clip_counts=batch.clip_counts[videos],
        ids=batch.ids[clips],
        video_ids=batch.video_ids[videos],
        keys=batch.keys[videos],
        pooled_context={name: rows[videos] for name, rows in batch.pooled_context.items()},
    )


def gather(
    fabric: Fabric, outputs: Mapping[str, Tensor], batch: Batch, idle: bool = False, features: bool = True
) -> tuple[dict[str, Tensor], Batch]:
    """Embeddings and batch of all processes; gradients flow through the rows of this process.

    An ``idle`` process has no videos of the batch. Without ``features``, pooled features, the larger part of the
    traffic, are not sent. The inputs and keys of the batch are still those of this process.
    """
    world = fabric.world_size
    if world == 1:
        return dict(outputs), batch
    videos = count_rows(0 if idle else len(batch.keys), fabric.device)
    clips = count_rows(0 if idle else len(batch.ids), fabric.device)
    whole = {
        name: gather_rows(own, clips if name.startswith("clip/") else videos, factor=float(world))
        for name, own in outputs.items()
    }

    def pooled(own: Mapping[str, Tensor], counts: list[int]) -> Mapping[str, Tensor]:
        return {name: gather_rows(rows, counts) for name, rows in own.items()} if features else own

    masks = {name: gather_rows(mask.to(fabric.device), clips).cpu() for name, mask in batch.present.items()}
    return whole, replace(
        batch,
        present=masks,
        pooled=pooled(batch.pooled, clips),
        pooled_context=pooled(batch.pooled_context, videos),
        clip_counts=gather_rows(batch.clip_counts.to(fabric.device), videos).cpu(),
        ids=gather_rows(batch.ids, clips),
        video_ids=gather_rows(batch.video_ids, videos),
    )


def _sequences(ragged: Ragged, present: Tensor, chosen: slice) -> Ragged:
    """The sequences of some clips or videos; only those that are present have one."""
    start, stop = int(present[: chosen.start].sum()), int(present[: chosen.stop].sum())
    offsets = ragged.offsets
    return Ragged(ragged.values[int(offsets[start]) : int(offsets[stop])], ragged.lengths[start:stop])
