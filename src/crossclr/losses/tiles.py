"""Sums over the rows of a similarity matrix, a tile at a time, with their gradients.

A tile is some anchors against all other rows. Its gradient is computed at once and its logits are dropped, so the
memory is that of one tile, and nothing of size N × N is kept for the backward pass.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from crossclr.losses.distributed import any_process, rows_of_process, sum_over_processes

Tile = Callable[..., "Tensor | tuple[Tensor, Tensor]"]
HIDDEN = -1e30  # a logit that acts as -inf, but its derivatives are 0 instead of NaN
CACHED = 1 << 19  # logits that are turned into exponentials at a time


def tiled_loss(
    tile: Tile, rows: Sequence[Tensor], others: Sequence[Tensor] = (), chunk_size: int | None = None, group: Any = None
) -> tuple[Tensor, Tensor]:
    """Σ of ``tile(here, *(each[here] for each in rows), *rows, *others)`` over slices ``here`` of the rows.

    Args:
        tile: returns the loss of some rows, and optionally a second scalar, which is summed too but gets no gradient.
        rows: tensors with one row for each anchor; ``tile`` gets the rows of the slice first, then all of them.
        others: further tensors that need a gradient, such as a learned temperature.
        chunk_size: rows of a slice; None takes all rows at once.
        group: the processes that share the rows, which all hold the same tensors; None does not share them.

    Returns:
        Both sums, differentiable once.

    Example:
        >>> x = torch.arange(4.0, requires_grad=True)
        >>> total, _ = tiled_loss(lambda here, x_here, y_here, x, y: (x_here * y_here).sum(), (x, x), chunk_size=3)
        >>> total.backward()
        >>> total.item(), x.grad.tolist()
        (14.0, [0.0, 2.0, 4.0, 6.0])
    """
    sums: tuple[Tensor, Tensor] = _Tiled.apply(tile, chunk_size, group, len(rows), *rows, *others)  # type: ignore[no-untyped-call]
    return sums


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tile: Tile, chunk_size: int | None, group: Any, sliced: int, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        needed = any(ctx.needs_input_grad) and not torch.is_inference_mode_enabled()
        first, last = 0, len(tensors[0])
        if group is not None:
            needed, (first, last) = any_process(needed, tensors[0].device, group), rows_of_process(last, group)
        sums = tensors[0].new_zeros(()), tensors[0].new_zeros(())
        gradients = [torch.zeros_like(tensor) for tensor in tensors] if needed else []
        for start in range(first, last, chunk_size or max(1, last - first)):
            here = slice(start, min(last, start + chunk_size) if chunk_size else last)
            # The rows of a slice are leaves of their own, because the gradient of a slice is as large as the tensor.
            slices = [tensor[here] for tensor in tensors[:sliced]]
            leaves = [tensor.detach().requires_grad_(needed) for tensor in (*slices, *tensors)]
            with torch.set_grad_enabled(needed):
                result = tile(here, *leaves)
            results = (result,) if isinstance(result, Tensor) else result
            if needed:
                goals = (*(gradient[here] for gradient in gradients[:sliced]), *gradients)
                for goal, gradient in zip(
                    goals, torch.autograd.grad(results[0], leaves, allow_unused=True), strict=True
                ):
                    if gradient is not None:
                        goal += gradient
            for total, scalar in zip(sums, results, strict=False):
                total += scalar.detach()
        if group is not None:
            sum_over_processes((*sums, *gradients), group)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(sums[1])
        return sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # torch's `once_differentiable` would let a wrong second derivative pass
            raise RuntimeError("losses are differentiable once; compute their gradient without create_graph=True")
        wanted = zip(ctx.saved_tensors, ctx.needs_input_grad[4:], strict=True)
        return None, None, None, None, *(grad * gradient if need else None for gradient, need in wanted)


def log_sum_exp(
    logits: Tensor, hide: Tensor | int | None, columns: Tensor | None = None, keep: Tensor | None = None
) -> Tensor:
    """Log Σ exp over each row without the hidden entries. The logits (rows, columns) cannot be used afterwards.

    ``hide`` is a mask (rows, columns), of some columns or all, or the column at which the hidden diagonal begins.
    ``keep`` (columns,) hides whole columns.
    """
    keep = None if keep is None or bool(keep.all()) else keep
    total: Tensor = _LogSumExp.apply(logits, hide, columns, keep)  # type: ignore[no-untyped-call]
    return total


class _LogSumExp(torch.autograd.Function):
    """In place: no copy of the logits, and the backward pass multiplies what the forward pass has left there.

    Some rows are processed at a time, so that they are read from memory once. Arithmetic is several times slower where
    a result is not a normal number, hence the lower bound, far below the precision of the sum.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, hide: Tensor | int | None, columns: Tensor | None, keep: Tensor | None
    ) -> Tensor:
        highest, total = logits.new_empty(len(logits), 1), logits.new_empty(len(logits), 1)
        dropped = None if keep is None else (~keep).to(logits.dtype) * HIDDEN
        lowest = math.log(torch.finfo(logits.dtype).tiny) / 2
        step = max(1, CACHED // max(1, logits.shape[1]))
        for first in range(0, len(logits), step):
            here = slice(first, first + step)
            block = logits[here] if dropped is None else logits[here].add_(dropped)
            if isinstance(hide, int):
                block.diagonal(hide + first).fill_(HIDDEN)
            elif hide is not None and columns is None:
                block.masked_fill_(hide[here], HIDDEN)
            elif hide is not None:
                block[:, columns] = block[:, columns].masked_fill(hide[here], HIDDEN)
            highest[here] = block.amax(dim=1, keepdim=True)
            total[here] = block.sub_(highest[here]).clamp_(min=lowest).exp_().sum(dim=1, keepdim=True)
        ctx.exponentials, ctx.total = logits, total
        return (highest + total.log()).squeeze(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.exponentials.mul_(grad.unsqueeze(1) / ctx.total), None, None, None
