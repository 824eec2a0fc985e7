"""Sums over the rows of a similarity matrix, computed some rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from crossclr.losses.sums.across_processes import current_sharing

Part = Callable[..., Tensor]


def sum_of_rows(part: Part, count: int, chunk_size: int | None, *tensors: Tensor) -> Tensor:
    """Σ of ``part(rows, *tensors)`` over slices of ``count`` rows, differentiable any number of times.

    The gradient of a slice is computed immediately and its graph dropped, so memory is that of one slice. A second
    derivative (``create_graph=True``) computes the slices again with their graph. Within `shared_work` the processes
    share the rows.

    Args:
        part: (slice, tensors) -> scalar, what these rows add to the sum.
        count: number of rows.
        chunk_size: rows of a slice; None: all.
        *tensors: what the sum depends on.

    Example:
        >>> x = torch.arange(4.0, requires_grad=True)
        >>> total = sum_of_rows(lambda rows, x: x[rows].square().sum(), 4, 3, x)
        >>> total.backward()
        >>> total.item(), x.grad.tolist()
        (14.0, [0.0, 2.0, 4.0, 6.0])
    """
    total: Tensor = _SumOfRows.apply(part, count, chunk_size, *tensors)  # type: ignore[no-untyped-call]
    return total


class _SumOfRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Part, count: int, chunk_size: int | None, *tensors: Tensor) -> Tensor:
        sharing = current_sharing()
        needed = any(ctx.needs_input_grad) and not torch.is_inference_mode_enabled()
        first, last = 0, count
        if sharing is not None:
            needed, (first, last) = sharing.anyone(needed, tensors[0].device), sharing.part(count)
        total = tensors[0].new_zeros(())
        gradients = [torch.zeros_like(tensor) for tensor in tensors] if needed else []
        step = chunk_size or count
        for start in range(first, last, step):
            rows = slice(start, min(start + step, last))
            with torch.set_grad_enabled(needed):
                leaves = [tensor.detach().requires_grad_(needed) for tensor in tensors]
                value = part(rows, *leaves)
            total += value.detach()
            if needed:
                for gradient, found in zip(gradients, torch.autograd.grad(value, leaves), strict=True):
                    gradient += found
        if sharing is not None:
            sharing.add_up(total, *gradients)
        ctx.gradients, ctx.whole = gradients, (part, count, step)
        ctx.save_for_backward(*tensors)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[3:]
        if not torch.is_grad_enabled():
            found = (grad * gradient for gradient in ctx.gradients)
            return None, None, None, *(one if need else None for one, need in zip(found, wanted, strict=True))
        part, count, step = ctx.whole
        tensors = [tensor.view_as(tensor) for tensor in ctx.saved_tensors]  # distinct, even if one was passed twice
        slices = [slice(start, min(start + step, count)) for start in range(0, count, step)]
        total = torch.stack([part(rows, *tensors) for rows in slices]).sum()
        needed = [tensor for tensor, need in zip(tensors, wanted, strict=True) if need]
        again = iter(torch.autograd.grad(total, needed, grad, create_graph=True))
        return None, None, None, *(next(again) if need else None for need in wanted)
