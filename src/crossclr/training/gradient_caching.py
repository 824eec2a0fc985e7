"""Gradient caching: the exact step of a large batch with the memory of a part of it.

First all parts are embedded without a graph. Then the loss of the whole batch gives the gradient of each embedding.
Then each part is embedded again with the same dropout, and its gradients flow into the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crossclr.features import Batch

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def backward_in_parts(
    fabric: Fabric, model: Any, parts: Sequence[Batch], loss_of: Callable[[dict[str, Tensor]], Tensor]
) -> Tensor:
    """Add the gradients of the whole batch with the memory of one part; returns the loss, detached.

    The model comes from ``fabric.setup``; processes exchange gradients once, with the last part. ``loss_of`` takes the
    embeddings of the whole batch, and its own parameters get their gradients too.
    """
    states, embedded = [], []
    with torch.no_grad():
        for part in parts:
            states.append(_generators(fabric.device))
            embedded.append(model(part))
    leaves = {name: torch.cat([found[name] for found in embedded]).requires_grad_() for name in embedded[0]}
    loss = loss_of(leaves)
    loss.backward()  # type: ignore[no-untyped-call]
    first = dict.fromkeys(leaves, 0)
    for number, (part, state) in enumerate(zip(parts, states, strict=True)):
        _set_generators(fabric.device, state)  # the same dropout as before
        alone = fabric.world_size > 1 and number < len(parts) - 1
        with fabric.no_backward_sync(model) if alone else nullcontext():
            total = torch.zeros((), device=fabric.device)
            for name, rows in model(part).items():
                gradient = leaves[name].grad
                if gradient is not None:  # None: the loss does not use this embedding
                    total = total + (rows * gradient[first[name] : first[name] + len(rows)]).sum()
                first[name] += len(rows)
            fabric.backward(total)
    return loss.detach()


def _generators(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_generators(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
