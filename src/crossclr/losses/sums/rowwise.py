"""Sums over the rows of a similarity matrix, computed some rows at a time and differentiable any number of times.

The gradient of some rows is computed immediately and their graph dropped, so memory is that of one slice. A second
derivative (``create_graph=True``) computes the sum again with its graph. Within `shared_work` the processes share the
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from crossclr.losses.sums.across_processes import current_sharing

Part = Callable[..., Tensor]


class Totals:
    """What a sum has accumulated: results (the sum first) and the gradients of the sum with respect to its tensors."""

    results: tuple[Tensor, ...]
    gradients: list[Tensor]

    def add(self, rows: slice) -> None:
        """Add what these rows contribute."""
        raise NotImplementedError


Start = Callable[[bool], Totals]


def by_rows(start: Start, again: Part, chunk_size: int | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The results of a sum over the rows of the first tensor; only the first result, the sum, has a gradient.

    ``start`` returns the totals of no rows; its argument says whether gradients are needed. ``again`` computes the sum
    in plain torch, for second derivatives.
    """
    found: tuple[Tensor, ...] = _ByRows.apply(start, again, chunk_size, *tensors)  # type: ignore[no-untyped-call]
    return found


class _ByRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        start: Callable[[bool], Totals],
        again: Callable[..., Tensor],
        chunk_size: int | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        sharing = current_sharing()
        needed = any(ctx.needs_input_grad) and not torch.is_inference_mode_enabled()
        first, last = 0, len(tensors[0])
        step = chunk_size or last
        if sharing is not None:
            needed, (first, last) = sharing.on_any_process(needed, tensors[0].device), sharing.part(last)
        totals = start(needed)
        for row in range(first, last, step):
            totals.add(slice(row, min(row + step, last)))
        if sharing is not None:
            sharing.add_up(*totals.results, *(totals.gradients if needed else ()))
        ctx.again, ctx.gradients = again, totals.gradients
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*totals.results[1:])
        return totals.results

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[3:]
        if not torch.is_grad_enabled():
            found = (grad * gradient for gradient in ctx.gradients)
            return None, None, None, *(one if need else None for one, need in zip(found, wanted, strict=True))
        tensors = [tensor.view_as(tensor) for tensor in ctx.saved_tensors]  # distinct, even if one was passed twice
        needed = [tensor for tensor, need in zip(tensors, wanted, strict=True) if need]
        again = iter(torch.autograd.grad(ctx.again(*tensors), needed, grad, create_graph=True))
        return None, None, None, *(next(again) if need else None for need in wanted)


def sum_of_rows(part: Part, chunk_size: int | None, x: Tensor, y: Tensor, *others: Tensor) -> Tensor:
    """Σ of ``part(rows, x[rows], y[rows], x, y, *others)`` over slices of the rows of x and y.

    Example:
        >>> x = torch.arange(4.0, requires_grad=True)
        >>> total = sum_of_rows(lambda rows, own_x, own_y, x, y: (own_x * own_y).sum(), 3, x, x)
        >>> total.backward()
        >>> total.item(), x.grad.tolist()
        (14.0, [0.0, 2.0, 4.0, 6.0])
    """

    def start(with_gradient: bool) -> Totals:
        return _PartTotals(part, (x, y, *others), with_gradient)

    def again(x: Tensor, y: Tensor, *others: Tensor) -> Tensor:
        step = chunk_size or len(x)
        slices = [slice(row, row + step) for row in range(0, len(x), step)]
        return torch.stack([part(rows, x[rows], y[rows], x, y, *others) for rows in slices]).sum()

    return by_rows(start, again, chunk_size, x, y, *others)[0]


class _PartTotals(Totals):
    """Totals with torch's own gradients.

    The rows of a slice are leaves of their own, because the gradient of a slice is as large as the whole tensor.
    """

    def __init__(self, part: Part, tensors: Sequence[Tensor], with_gradient: bool) -> None:
        self.part, self.tensors, self.with_gradient = part, tensors, with_gradient
        self.results = (tensors[0].new_zeros(()),)
        self.gradients = [torch.zeros_like(tensor) for tensor in tensors] if with_gradient else []

    def add(self, rows: slice) -> None:
        own = [tensor[rows] for tensor in self.tensors[:2]]
        leaves = [tensor.detach().requires_grad_(self.with_gradient) for tensor in (*own, *self.tensors)]
        token = _graph_is_used_once.set(True)
        try:
            with torch.set_grad_enabled(self.with_gradient):
                value = self.part(rows, *leaves)
        finally:
            _graph_is_used_once.reset(token)
        self.results[0].add_(value.detach())
        if self.with_gradient:
            goals = [*(gradient[rows] for gradient in self.gradients[:2]), *self.gradients]
            found = torch.autograd.grad(value, leaves, allow_unused=True)
            for goal, gradient in zip(goals, found, strict=True):
                if gradient is not None:
                    goal += gradient


_graph_is_used_once: ContextVar[bool] = ContextVar("crossclr_graph_is_used_once", default=False)


def log_sum_exp(logits: Tensor, hide: Tensor | int) -> Tensor:
    """Log Σ exp over each row without the hidden entries. The logits (rows, columns) cannot be used afterwards.

    ``hide`` is a mask (rows, columns), or the column at which the hidden diagonal begins.
    """
    if _graph_is_used_once.get():
        found: Tensor = _LogSumExp.apply(logits, hide)  # type: ignore[no-untyped-call]
        return found
    return _hidden(logits.clone(), hide).logsumexp(dim=1)


def _hidden(logits: Tensor, hide: Tensor | int) -> Tensor:
    """Hide entries in place. The value acts as -inf, but its derivatives are 0 instead of NaN."""
    hidden = torch.finfo(logits.dtype).min / 4
    if isinstance(hide, Tensor):
        return logits.masked_fill_(hide, hidden)
    logits.diagonal(hide).fill_(hidden)
    return logits


class _LogSumExp(torch.autograd.Function):
    """In place: no copy of the logits, and the backward pass multiplies what the forward pass has left there."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, hide: Tensor | int) -> Tensor:
        highest = _hidden(logits, hide).amax(dim=1, keepdim=True)
        total = logits.sub_(highest).exp_().sum(dim=1, keepdim=True)
        ctx.exponentials, ctx.total = logits, total
        return (highest + total.log()).squeeze(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.exponentials.mul_(grad.unsqueeze(1) / ctx.total), None
