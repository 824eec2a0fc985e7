"""One batch, many processes: rows are gathered in the order of the processes, and the work on them is shared.

`gather_rows` gives everybody the rows of all; gradients come back to whoever holds a row. Within `shared_work` a loss
compares only its process's part of the anchors with all rows, and value and gradients are summed, so that afterwards
every process holds the same numbers as one process that did it all alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Sharing:
    """The processes that share the work on a batch.

    Args:
        rank: number of this process.
        world: how many there are.
        group: their process group; None is the default one.
    """

    rank: int
    world: int
    group: Any = None

    def part(self, count: int) -> tuple[int, int]:
        """First of ``count`` anchors that this process works on, and the one after its last.

        Example:
            >>> [Sharing(rank, 3).part(7) for rank in range(3)]
            [(0, 2), (2, 4), (4, 7)]
        """
        return self.rank * count // self.world, (self.rank + 1) * count // self.world

    def add_up(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over the processes, the same bits everywhere."""
        for tensor in tensors:
            dist.all_reduce(tensor, group=self.group)

    def anyone(self, wish: bool, device: torch.device) -> bool:
        """Whether any process has the wish: what leads to an exchange must be decided alike by all."""
        votes = torch.tensor(float(wish), device=device)
        dist.all_reduce(votes, group=self.group)
        return bool(votes)


_current: ContextVar[Sharing | None] = ContextVar("crossclr_sharing", default=None)


def current_sharing() -> Sharing | None:
    """Who shares the work at this moment; None: nobody."""
    return _current.get()


@contextmanager
def shared_work(group: Any = None) -> Iterator[None]:
    """Let losses within this block share their work among the processes, which must all hold the same rows.

    Nothing changes where there is no process group, or one process in it.
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
    """How many rows each process has, in the order of the processes."""
    own = torch.tensor([rows], device=device)
    counts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, own, group=group)
    return [int(count) for count in counts]


def gather_rows(own: Tensor, counts: Sequence[int], group: Any = None, factor: float = 1.0) -> Tensor:
    """The rows of all processes, those of process 0 first; differentiable by one's own.

    Every process gets the gradient of its own rows alone, so each must compute the whole loss of the gathered rows
    (see `shared_work` for how they share that).

    Args:
        own: (rows, ...) the rows of this process; may be none. Rows beyond its count are left out.
        counts: rows of each process, as `count_rows` gives them.
        group: the process group.
        factor: multiplies the gradient of one's own rows.

    Returns:
        (sum of counts, ...)
    """
    gathered: Tensor = _Gather.apply(own, tuple(counts), group, factor)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: tuple[int, ...], group: Any, factor: float) -> Tensor:
        rank = dist.get_rank(group)
        first = sum(counts[:rank])
        ctx.mine, ctx.shape, ctx.factor = slice(first, first + counts[rank]), own.shape, factor
        padded = own.new_zeros(max(counts), *own.shape[1:])  # back ends want equal shapes
        padded[: counts[rank]] = own[: counts[rank]]
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        own = gradient.new_zeros(ctx.shape)
        own[: ctx.mine.stop - ctx.mine.start] = gradient[ctx.mine] * ctx.factor
        return own, None, None, None
