"""One CrossCLR step with four modalities, compared with six losses for the six pairs."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from benchmarks.measure import side_by_side
from crossclr.losses import CrossCLR

NAMES, BATCH, QUEUE, DIM, FEATURES = ("video", "audio", "english", "spanish"), 64, 5000, 384, 512


def queue_megabytes(*losses: nn.Module) -> float:
    """Size of everything the queues hold."""
    return sum(buffer.nbytes for loss in losses for buffer in loss.buffers()) / 2**20


def inputs(rows: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Embeddings and features whose cosines spread as real ones do."""
    return {n: torch.randn(rows, DIM) for n in NAMES}, {n: torch.randn(rows, FEATURES) + 0.5 for n in NAMES}


def step_of(losses: Sequence[tuple[CrossCLR, tuple[str, ...]]]) -> Callable[[], None]:
    """Forward and backward pass of the mean of some losses, each on its modalities, with full queues."""
    z, x = inputs(BATCH)
    for rows in z.values():
        rows.requires_grad_()
    ids = itertools.cycle(torch.randperm(10_240).reshape(160, BATCH))

    def call(z: dict[str, Tensor], x: dict[str, Tensor], ids: Tensor | None) -> Tensor:
        found = [loss({n: z[n] for n in names}, features={n: x[n] for n in names}, ids=ids) for loss, names in losses]
        return torch.stack(found).mean()

    for _ in range(QUEUE // 500):
        call(*inputs(500), None)

    def step() -> None:
        for rows in z.values():
            rows.grad = None
        call(z, x, next(ids)).backward()  # type: ignore[no-untyped-call]

    return step


def run() -> dict[str, float]:
    """Median milliseconds, megabytes of the queues, and the ratios."""
    warnings.filterwarnings("ignore", message="pruning by")
    torch.manual_seed(0)
    together = CrossCLR(queue_size=QUEUE)
    pairwise = [(CrossCLR(queue_size=QUEUE), pair) for pair in itertools.combinations(NAMES, 2)]
    seconds = side_by_side({"together": step_of([(together, NAMES)]), "pairwise": step_of(pairwise)}, rounds=5, calls=3)
    held, held_by_pairs = queue_megabytes(together), queue_megabytes(*(loss for loss, _ in pairwise))
    return {
        "four_modalities_ms": 1e3 * seconds["together"],
        "six_pairwise_losses_ms": 1e3 * seconds["pairwise"],
        "faster_than_pairwise": seconds["pairwise"] / seconds["together"],
        "queue_mb": held,
        "pairwise_queue_mb": held_by_pairs,
        "share_of_pairwise_queue_memory": held / held_by_pairs,
    }


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:36s}{value:10.2f}")
