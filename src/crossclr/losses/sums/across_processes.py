"""Share one batch among processes: gather the rows in process order and divide the work.

`gather_rows` gives every process the rows of all; gradients flow back to the process that holds a row. Within
`shared_work` each process compares its part of the anchors with all rows, and value and gradients are summed. Every
process then holds the same numbers as a single process would.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from crossclr.features.batching.order import bounds


@dataclass(frozen=True)
class Sharing:
    """The processes that share the work on a batch."""

    rank: int  # number of this process
    world: int  # how many there are
    group: Any = None  # their process group; None is the default one

    def part(self, count: int) -> tuple[int, int]:
        """Start and end of this process's part of ``count`` anchors."""
        return bounds(count, self.rank, self.world)

    def add_up(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over the processes, the same bits everywhere."""
        for tensor in tensors:
            dist.all_reduce(tensor, group=self.group)

    def on_any_process(self, condition: bool, device: torch.device) -> bool:
        """Whether the condition holds on any process, so that all processes take part in the same exchanges."""
        votes = torch.tensor(float(condition), device=device)
        dist.all_reduce(votes, group=self.group)
        return bool(votes)


_current: ContextVar[Sharing | None] = ContextVar("crossclr_sharing", default=None)


def current_sharing() -> Sharing | None:
    """The processes that share the current work; None if it is not shared."""
    return _current.get()


@contextmanager
def shared_work(group: Any = None) -> Iterator[None]:
    """Share the work of losses in this block among the processes, which must all hold the same rows.

    Has no effect without a process group or with a single process.
    """
    sharing = None
    if dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1:
        sharing = Sharing(dist.get_rank(group), dist.get_world_size(group), group)
    token = _current.set(sharing)
    try:
        yield
    finally:
        _current.reset(token)


def count_rows(rows: int, device: torch.device | str = "cpu", group: Any = None) -> list[int]:
    """The number of rows of each process, in process order."""
    own = torch.tensor([rows], device=device)
    counts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, own, group=group)
    return [int(count) for count in counts]


def gather_rows(own: Tensor, counts: Sequence[int], group: Any = None, factor: float = 1.0) -> Tensor:
    """The rows of all processes in process order, differentiable with respect to the rows of this process.

    Each process gets the gradient of its own rows only, multiplied by ``factor``, so each must compute the whole loss
    of the gathered rows (`shared_work` divides that work). ``counts`` come from `count_rows`; rows beyond the own count
    are dropped.
    """
    gathered: Tensor = _Gather.apply(own, tuple(counts), group, factor)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: tuple[int, ...], group: Any, factor: float) -> Tensor:
        rank = dist.get_rank(group)
        first = sum(counts[:rank])
        ctx.own_rows, ctx.shape, ctx.factor = slice(first, first + counts[rank]), own.shape, factor
        padded = own.new_zeros(max(counts), *own.shape[1:])  # back ends need equal shapes
        padded[: counts[rank]] = own[: counts[rank]]
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        own = gradient.new_zeros(ctx.shape)
        own[: ctx.own_rows.stop - ctx.own_rows.start] = gradient[ctx.own_rows] * ctx.factor
        return own, None, None, None
