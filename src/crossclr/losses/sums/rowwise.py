"""Sums over the rows of a similarity matrix, computed some rows at a time and differentiable any number of times.

The gradient of some rows is computed immediately and their graph dropped, so memory is that of one slice. A second
derivative (``create_graph=True``) computes the sum again with its graph. Within `shared_work` the processes share the
rows.
"""

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from crossclr.losses.sums.across_processes import current_sharing

Part = Callable[..., "Tensor | tuple[Tensor, Tensor]"]
CACHED = 1 << 19  # logits that are turned into exponentials at a time


def sum_of_rows(part: Part, chunk_size: int | None, rows: Sequence[Tensor], others: Sequence[Tensor] = ()) -> Tensor:
    """Σ of ``part(here, *[one[here] for one in rows], *rows, *others)`` over slices ``here`` of the rows.

    Example:
        >>> x = torch.arange(4.0, requires_grad=True)
        >>> total = sum_of_rows(lambda here, own_x, own_y, x, y: (own_x * own_y).sum(), 3, (x, x))
        >>> total.backward()
        >>> total.item(), x.grad.tolist()
        (14.0, [0.0, 2.0, 4.0, 6.0])
    """
    return sum_and_fact(part, chunk_size, rows, others)[0]


def sum_and_fact(
    part: Part, chunk_size: int | None, rows: Sequence[Tensor], others: Sequence[Tensor] = ()
) -> tuple[Tensor, Tensor]:
    """`sum_of_rows`, and the sum of a second scalar that ``part`` may return, which gets no gradient."""
    found: tuple[Tensor, Tensor] = _SumOfRows.apply(part, chunk_size, len(rows), *rows, *others)  # type: ignore[no-untyped-call]
    return found


class _SumOfRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Part, chunk_size: int | None, sliced: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        sharing = current_sharing()
        needed = any(ctx.needs_input_grad) and not torch.is_inference_mode_enabled()
        first, last = 0, len(tensors[0])
        step = chunk_size or last
        if sharing is not None:
            needed, (first, last) = sharing.on_any_process(needed, tensors[0].device), sharing.part(last)
        results = tensors[0].new_zeros(()), tensors[0].new_zeros(())
        gradients = [torch.zeros_like(tensor) for tensor in tensors] if needed else []
        for row in range(first, last, step):
            here = slice(row, min(row + step, last))
            for total, found in zip(results, _evaluate(part, here, sliced, tensors, gradients), strict=False):
                total += found
        if sharing is not None:
            sharing.add_up(*results, *gradients)
        ctx.part, ctx.step, ctx.sliced, ctx.gradients = part, step, sliced, gradients
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(results[1])
        return results

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[3:]
        if not torch.is_grad_enabled():
            found = (grad * gradient for gradient in ctx.gradients)
            return None, None, None, *(one if need else None for one, need in zip(found, wanted, strict=True))
        tensors = [tensor.view_as(tensor) for tensor in ctx.saved_tensors]  # distinct, even if one was passed twice
        needed = [tensor for tensor, need in zip(tensors, wanted, strict=True) if need]
        slices = [slice(row, row + ctx.step) for row in range(0, len(tensors[0]), ctx.step)]
        parts = [ctx.part(here, *(one[here] for one in tensors[: ctx.sliced]), *tensors) for here in slices]
        total = torch.stack([_results(one)[0] for one in parts]).sum()
        again = iter(torch.autograd.grad(total, needed, grad, create_graph=True))
        return None, None, None, *(next(again) if need else None for need in wanted)


def _evaluate(
    part: Part, here: slice, sliced: int, tensors: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The results of some rows; their gradients are added to ``gradients``, if there are any.

    The rows of a slice are leaves of their own, because the gradient of a slice is as large as the whole tensor.
    """
    own = [tensor[here] for tensor in tensors[:sliced]]
    leaves = [tensor.detach().requires_grad_(bool(gradients)) for tensor in (*own, *tensors)]
    token = _graph_is_used_once.set(True)
    try:
        with torch.set_grad_enabled(bool(gradients)):
            results = _results(part(here, *leaves))
    finally:
        _graph_is_used_once.reset(token)
    if gradients:
        goals = [*(gradient[here] for gradient in gradients[:sliced]), *gradients]
        found = torch.autograd.grad(results[0], leaves, allow_unused=True)
        for goal, gradient in zip(goals, found, strict=True):
            if gradient is not None:
                goal += gradient
    return tuple(result.detach() for result in results)


def _results(found: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    return (found,) if isinstance(found, Tensor) else found


_graph_is_used_once: ContextVar[bool] = ContextVar("crossclr_graph_is_used_once", default=False)


def log_sum_exp(
    logits: Tensor, hide: Tensor | int | None, columns: Tensor | None = None, keep: Tensor | None = None
) -> Tensor:
    """Log Σ exp over each row without the hidden entries. The logits (rows, columns) cannot be used afterwards.

    ``hide`` is a mask (rows, columns), of some columns or all, or the column at which the hidden diagonal begins.
    ``keep`` (columns,) hides whole columns.
    """
    if _graph_is_used_once.get():
        found: Tensor = _LogSumExp.apply(logits, hide, columns, keep)  # type: ignore[no-untyped-call]
        return found
    logits = _fill_hidden(logits.clone(), hide, columns, hidden_logit(logits.dtype))
    return (logits if keep is None else logits.masked_fill(~keep, hidden_logit(logits.dtype))).logsumexp(dim=1)


def hidden_logit(dtype: torch.dtype) -> float:
    """A logit that acts as -inf, but its derivatives are 0 instead of NaN."""
    return torch.finfo(dtype).min / 4


def _fill_hidden(logits: Tensor, hide: Tensor | int | None, columns: Tensor | None, value: float) -> Tensor:
    """Replace hidden entries in place."""
    if isinstance(hide, int):
        logits.diagonal(hide).fill_(value)
    elif hide is not None and columns is None:
        logits.masked_fill_(hide, value)
    elif hide is not None:
        logits[:, columns] = logits[:, columns].masked_fill(hide, value)
    return logits


class _LogSumExp(torch.autograd.Function):
    """In place: no copy of the logits, and the backward pass multiplies what the forward pass has left there.

    Some rows are processed at a time, so that they are read from memory once. The exponential is several times slower
    where its result is not a normal number, hence the lower bound.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, hide: Tensor | int | None, columns: Tensor | None, keep: Tensor | None
    ) -> Tensor:
        numbers, hidden = torch.finfo(logits.dtype), hidden_logit(logits.dtype)
        highest, total = logits.new_empty(len(logits), 1), logits.new_empty(len(logits), 1)
        kept = None if keep is None else keep.to(logits.dtype)
        step = max(1, CACHED // max(1, logits.shape[1]))
        for first in range(0, len(logits), step):
            here = slice(first, first + step)
            own = hide + first if isinstance(hide, int) else None if hide is None else hide[here]
            part = _fill_hidden(logits[here], own, columns, hidden)
            part = part if kept is None else part.add_((1 - kept) * hidden)
            highest[here] = part.amax(dim=1, keepdim=True)
            part.sub_(highest[here]).clamp_(min=math.log(numbers.tiny) + 1).exp_()
            part = _fill_hidden(part if kept is None else part.mul_(kept), own, columns, 0.0)
            total[here] = part.sum(dim=1, keepdim=True)
        ctx.exponentials, ctx.total = logits, total.clamp_(min=numbers.tiny)  # 0 if a whole row is hidden
        return (highest + total.log()).squeeze(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.exponentials.mul_(grad.unsqueeze(1) / ctx.total), None, None, None
