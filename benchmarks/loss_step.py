"""One CrossCLR step with a full queue, compared with the printed algorithm, the bare products and another library."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import side_by_side
from crossclr.losses import CrossCLR

BATCH, QUEUE, DIM, DIM_A, DIM_B = 64, 5000, 768, 2048, 1536


def features(rows: int) -> tuple[Tensor, Tensor]:
    """Input features whose cosines are distributed like those of real features."""
    return torch.randn(rows, DIM_A) + 0.5, torch.randn(rows, DIM_B) + 0.5


def ours(queue: int) -> Callable[[], None]:
    loss_fn = CrossCLR(queue_size=queue)
    while loss_fn.stats.queue_fill < 1:
        loss_fn(torch.randn(500, DIM), torch.randn(500, DIM), *features(500))
    za, zb = torch.randn(BATCH, DIM, requires_grad=True), torch.randn(BATCH, DIM, requires_grad=True)
    a, b = features(BATCH)
    ids = itertools.cycle(torch.randperm(10_337)[: 161 * BATCH].reshape(161, BATCH))  # an epoch of YouCook2's clips

    def step() -> None:
        za.grad = zb.grad = None
        loss_fn(za, zb, a, b, next(ids)).backward()

    return step


def as_printed(queue: int) -> Callable[[], None]:
    """Algorithm 1 of the paper, step by step.

    Cosines are inner products over products of lengths; connectivity c of the queue against the queue, then
    connectivity α of the batch against the queue. Three things are mended, or it would not run: its own index is no
    negative, c is divided by its maximum, and weights are a softmax (the printed exponential overflows).
    """
    xa, xb = features(queue)
    ea, eb = F.normalize(torch.randn(queue, DIM), dim=1), F.normalize(torch.randn(queue, DIM), dim=1)
    za, zb = torch.randn(BATCH, DIM, requires_grad=True), torch.randn(BATCH, DIM, requires_grad=True)
    a, b = features(BATCH)
    state = [xa, xb, ea, eb]

    def mean_cosine(x: Tensor, to: Tensor) -> Tensor:
        lengths = torch.outer(torch.linalg.vector_norm(x, dim=1), torch.linalg.vector_norm(to, dim=1))
        return (x @ to.T / lengths).mean(dim=1)

    def one_side(x: Tensor, z: Tensor, other: Tensor, old: Tensor) -> Tensor:
        c = mean_cosine(x, x)  # (queue, queue) product
        alpha = mean_cosine(x[-BATCH:], x)
        kept = c / c.max() <= 0.9
        own = torch.arange(BATCH)
        across = (z @ other.T / 0.03).masked_fill(alpha / c.max() > 0.9, -torch.inf)
        across[own, own] = (z * other).sum(1) / 0.03
        within = z @ torch.cat([old[:-BATCH], z]).T / 0.03 + torch.log(torch.tensor(0.8))
        within = within.masked_fill(~kept, -torch.inf)
        within[own, queue - BATCH + own] = -torch.inf
        weights = torch.softmax(alpha / alpha.sum() / 0.0035, dim=0)
        logits = torch.cat([across, within], dim=1)
        return (weights * (logits.logsumexp(1) - across[own, own])).sum()

    def step() -> None:
        za.grad = zb.grad = None
        na, nb = F.normalize(za, dim=1), F.normalize(zb, dim=1)
        for i, new in enumerate((a, b, na.detach(), nb.detach())):
            state[i] = torch.cat([state[i][BATCH:], new])
        loss = (one_side(state[0], na, nb, state[2]) + one_side(state[1], nb, na, state[3])) / 2
        loss.backward()  # type: ignore[no-untyped-call]

    return step


def bare_products(queue: int) -> Callable[[], None]:
    """Only the products that no implementation can avoid, forward and backward, and nothing between them."""
    xa, xb = features(queue)
    ea, eb = torch.randn(queue, DIM), torch.randn(queue, DIM)
    za, zb = torch.randn(BATCH, DIM), torch.randn(BATCH, DIM)

    def step() -> None:
        for x, z, other, old in ((xa, za, zb, ea), (xb, zb, za, eb)):
            torch.mv(x, x[0])
            across, live, within = z @ other.T, z @ z.T, z @ old.T
            within @ old
            across @ other
            across.T @ z
            live @ z
            live.T @ z

    return step


def metric_learning(queue: int) -> Callable[[], None]:
    """pytorch-metric-learning's memory with NT-Xent, for one modality."""
    from pytorch_metric_learning.losses import CrossBatchMemory, NTXentLoss

    memory = CrossBatchMemory(NTXentLoss(0.03), DIM, memory_size=queue)
    for start in range(0, queue, 500):
        memory(torch.randn(min(500, queue - start), DIM), torch.arange(start, min(start + 500, queue)))
    views = torch.randn(BATCH, DIM, requires_grad=True)  # two views of half as many samples: a positive for each
    labels = itertools.cycle((torch.randperm(10_240) + queue).reshape(-1, BATCH // 2))

    def step() -> None:
        views.grad = None
        memory(views, next(labels).repeat(2)).backward()

    return step


def run() -> dict[str, float]:
    """Median milliseconds and ratios."""
    warnings.filterwarnings("ignore", message="pruning by")
    torch.manual_seed(0)
    fast = side_by_side({"ours": ours(QUEUE), "bare": bare_products(QUEUE)}, rounds=12, calls=10)
    printed = side_by_side({"ours": ours(QUEUE), "printed": as_printed(QUEUE)}, rounds=4, calls=4)
    library = side_by_side({"ours": ours(QUEUE), "library": metric_learning(QUEUE)}, rounds=4, calls=4)
    sizes = (2500, 5000, 10000, 20000)
    growth = side_by_side({str(size): ours(size) for size in sizes}, rounds=4, calls=8)
    return {
        "ours_ms": 1e3 * fast["ours"],
        "bare_products_ms": 1e3 * fast["bare"],
        "times_bare_products": fast["ours"] / fast["bare"],
        "algorithm_as_printed_ms": 1e3 * printed["printed"],
        "faster_than_printed": printed["printed"] / printed["ours"],
        "metric_learning_one_modality_ms": 1e3 * library["library"],
        "faster_than_metric_learning": library["library"] / library["ours"],
        **{f"queue_{size}_ms": 1e3 * growth[str(size)] for size in sizes},
    }


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:36s}{value:10.2f}")
