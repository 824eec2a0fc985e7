"""Losses over the global batch of several processes: gather the rows, share the work.

`gather_rows` gives every process the rows of all, in process order; gradients flow back to the process that holds a
row. A loss that is called with the ``group`` of these processes divides the work on the gathered rows: each process
compares its share of the anchors with all rows, and value and gradients are summed. Every process then holds the same
numbers as a single process would.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from crossclr.losses.base import Loss, LossInputs, read_inputs


class Distributed(nn.Module):
    """The loss of the global batch, where each process holds some rows.

    Embeddings, input features, ids and presence are gathered in process order. Every process gets the value and
    gradients that one process with all rows would get. Processes may have different numbers of rows, even none. All
    queues see the same rows and stay equal. The processes share the work: each compares its share of the anchors with
    all rows, tile by tile if the loss has a ``chunk_size``, so memory is O(rows of a tile × global rows).

    Args:
        loss: any loss of this package, or your own module with the same call.
        group: the process group; None is the default one. Without a process group this is the loss itself.
        combined_by: how gradients of the model's parameters are combined over processes afterwards. With ``mean``, as
            in DistributedDataParallel, gradients of embeddings are multiplied by the number of processes, so that the
            mean is the gradient of the global loss. ``sum`` does not change them.

    Inputs of a call:
        As for every loss, with the rows of this process. All processes must pass the same arguments and modalities.

    Example:
        >>> import torch
        >>> from crossclr.losses import CLIP
        >>> z = torch.eye(4)
        >>> bool(Distributed(CLIP())(z, z) == CLIP()(z, z))
        True
    """

    def __init__(self, loss: nn.Module, group: Any = None, combined_by: Literal["mean", "sum"] = "mean") -> None:
        super().__init__()
        if combined_by not in ("mean", "sum"):
            raise ValueError(f"combined_by must be 'mean' or 'sum', got {combined_by!r}")
        self.loss, self.group, self.combined_by = loss, group, combined_by

    def forward(self, *arguments: Any, **named: Any) -> Tensor:
        """Scalar loss of the rows of all processes, the same everywhere; arguments as for every loss."""
        group = process_group(self.group)
        if group is None:
            value: Tensor = self.loss(*arguments, **named)
            return value
        inputs = read_inputs(*arguments, **named)
        counts = count_rows(*_count_own_rows(inputs), group)
        factor = float(len(counts)) if self.combined_by == "mean" else 1.0

        def gathered(local: Tensor | None, live: bool = False) -> Tensor | None:
            if local is None:
                return None
            return gather_rows(local if live else local.detach(), counts, group, factor)

        embeddings = {name: gathered(local, live=True) for name, local in inputs.embeddings.items()}
        features = {name: gathered(local) for name, local in inputs.features.items()}
        rows: tuple[Any, ...]
        options: dict[str, Any] = {"group": group} if isinstance(self.loss, Loss) else {}
        if inputs.present:
            options["present"] = {name: gathered(local) for name, local in inputs.present.items()}
        if inputs.positional:  # a user's own loss may support no other form
            rows = (embeddings["a"], embeddings["b"], features["a"], features["b"])
        else:
            rows = (embeddings,)
            options |= {"features": features} if features else {}
        whole: Tensor = self.loss(*rows, ids=gathered(inputs.ids), **options)
        return whole

    forward._torchdynamo_disable = True  # type: ignore[attr-defined]  # see `Loss.forward`


def _count_own_rows(inputs: LossInputs) -> tuple[int, torch.device]:
    """Number of rows of this process and their device; all arguments must have the same number of rows."""
    (name, first), *_ = inputs.embeddings.items()
    if not isinstance(first, Tensor):
        raise ValueError(f"{inputs.labels[name]} must be a torch tensor, got {type(first).__name__}")
    named = [(inputs.labels[key], rows) for key, rows in inputs.embeddings.items()]
    named += [(inputs.feature_labels[key], rows) for key, rows in inputs.features.items()]
    named += [(f"present[{key!r}]", rows) for key, rows in inputs.present.items()]
    for label, rows in [*named, ("ids", inputs.ids)]:
        if rows is not None and len(rows) != len(first):
            raise ValueError(f"{label} has {len(rows)} rows on this process but {inputs.labels[name]} has {len(first)}")
    return len(first), first.device


def process_group(group: Any = None) -> Any:
    """The group, or the default one, if it has several processes; None if there is nobody to share with."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return None
    return dist.group.WORLD if group is None else group


def rows_of_process(count: int, group: Any) -> tuple[int, int]:
    """Start and end of this process's share of ``count`` rows."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    return rank * count // world, (rank + 1) * count // world


def sum_over_processes(tensors: Sequence[Tensor], group: Any) -> None:
    """Replace each tensor by its sum over the processes, the same bits everywhere."""
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)


def any_process(condition: bool, device: torch.device, group: Any) -> bool:
    """Whether the condition holds on any process, so that all processes take part in the same exchanges."""
    votes = torch.tensor(float(condition), device=device)
    dist.all_reduce(votes, group=group)
    return bool(votes)


def count_rows(rows: int, device: torch.device | str = "cpu", group: Any = None) -> list[int]:
    """The number of rows of each process, in process order."""
    local = torch.tensor([rows], device=device)
    counts = [torch.empty_like(local) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, local, group=group)
    return [int(count) for count in counts]


def gather_rows(local: Tensor, counts: Sequence[int], group: Any = None, factor: float = 1.0) -> Tensor:
    """The rows of all processes in process order, differentiable with respect to the rows of this process.

    Each process gets the gradient of its own rows only, multiplied by ``factor``, so each must hold the gradient of the
    whole loss of the gathered rows, as it does after a call of a loss with ``group``. ``counts`` come from
    `count_rows`; rows beyond the process's own count are dropped.
    """
    gathered: Tensor = _Gather.apply(local, tuple(counts), group, factor)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, counts: tuple[int, ...], group: Any, factor: float) -> Tensor:
        rank = dist.get_rank(group)
        first = sum(counts[:rank])
        ctx.local_rows, ctx.shape, ctx.factor = slice(first, first + counts[rank]), local.shape, factor
        padded = local.new_zeros(max(counts), *local.shape[1:])  # back ends need equal shapes
        padded[: counts[rank]] = local[: counts[rank]]
        blocks = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(blocks, padded, group=group)
        return torch.cat([block[:count] for block, count in zip(blocks, counts, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        local = gradient.new_zeros(ctx.shape)
        local[: ctx.local_rows.stop - ctx.local_rows.start] = gradient[ctx.local_rows] * ctx.factor
        return local, None, None, None
