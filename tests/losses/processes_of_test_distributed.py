"""One of several processes that compute the losses of a batch together; `test_distributed` starts and checks them.

python processes_of_test_distributed.py RANK WORLD FOLDER
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from crossclr.losses import Distributed, build_loss, distributed

DIMS = {"za": 6, "zb": 6, "a": 5, "b": 4}
CASES: dict[str, dict[str, object]] = {
    "crossclr": {},
    "crossclr queue": {"queue_size": 30},
    "crossclr queue chunks": {"queue_size": 25, "chunk_size": 2, "prune_by": "quantile", "prune_threshold": 0.6},
    "crossclr queue smaller than a batch": {"queue_size": 4},
    "crossclr positives": {"extra_positives": 2, "queue_size": 30, "prune_threshold": 0.5, "weight_scale": 0.1},
    "crossclr similar": {"queue_size": 30, "near_copies": 0.1, "shared_positives": 0.3, "chunk_size": 2},
    "crossclr released": {"intra_mode": "logit", "self_logit": "zero"},
    "crossclr plain": {"prune_threshold": None, "weight_scale": None, "queue_size": 16},
    "crossclr names": {"queue_size": 30, "chunk_size": 2},
    "clip names": {"pairs": {"text": {"video": 1.0, "audio": 0.5}}},
    "clip": {"chunk_size": 2},
    "ntxent": {},
    "maxmargin": {"chunk_size": 3},
    "milnce": {},
    "dcl": {},
    "siglip": {"chunk_size": 3},
}
# Rows of each process, step by step: uneven, a process without rows, a last batch that is smaller than the others.
COUNTS = {
    1: ([9], [7], [8], [2]),
    2: ([5, 4], [1, 6], [8, 0], [1, 1]),
    4: ([3, 1, 4, 1], [0, 5, 0, 2], [2, 2, 2, 2], [0, 1, 0, 1]),
}
STEPS = 4


def inputs(step: int) -> dict[str, Tensor]:
    """The global batch of a step; ids are repeated within a batch and across batches."""
    size = sum(COUNTS[1][step])
    generator = torch.Generator().manual_seed(step)
    rows = {k: torch.randn(size, d, generator=generator, dtype=torch.float64) + 0.3 for k, d in DIMS.items()}
    return {**rows, "ids": torch.randint(0, 12, (size,), generator=generator)}


class Model(nn.Module):
    """Two linear encoders, always with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(100)
        self.a = nn.Parameter(torch.randn(DIMS["za"], 5, generator=generator, dtype=torch.float64))
        self.b = nn.Parameter(torch.randn(DIMS["zb"], 5, generator=generator, dtype=torch.float64))

    def forward(self, za: Tensor, zb: Tensor) -> tuple[Tensor, Tensor]:
        return za @ self.a, zb @ self.b


def results(case: str, world: int, rank: int = 0, group: object = None) -> dict[str, Tensor]:
    """Values, gradients and the queue after several steps, by DistributedDataParallel where there are many."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss_fn = Distributed(build_loss(case.split()[0], **CASES[case]).double(), group)
        model = Model()
        parallel = DistributedDataParallel(model, process_group=group) if world > 1 else model
        found = {}
        for step in range(STEPS):
            counts = COUNTS[world][step]
            mine = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
            rows = {name: value[mine] for name, value in inputs(step).items()}
            parallel.zero_grad()
            loss_fn.zero_grad()
            za, zb = parallel(rows["za"], rows["zb"])
            if "names" in case:
                embeddings = {"video": za, "text": zb, "audio": za * zb}
                features = {"video": rows["a"], "text": rows["b"], "audio": rows["a"].flip(1)}
                present = {"audio": rows["ids"] % 3 > 0, "video": rows["ids"] % 5 > 0}
                loss = loss_fn(embeddings, features=features, ids=rows["ids"], present=present)
            else:
                loss = loss_fn(za, zb, a=rows["a"], b=rows["b"], ids=rows["ids"])
            loss.backward()
            found[f"loss {step}"] = loss.detach()
            for name, parameter in [*model.named_parameters(), *loss_fn.named_parameters()]:
                if parameter.grad is not None:
                    found[f"gradient {step} {name}"] = parameter.grad.clone()
        for name, buffer in loss_fn.named_buffers():
            found[f"buffer {name}"] = buffer.clone()
    return found


def reverse_the_gathered_rows() -> None:
    """A fault that a test must find: rows come in another order than gradients go back in."""
    whole = distributed._Gather.forward

    def reversed_forward(ctx, own, counts, group, factor):
        joined = whole(ctx, own, counts, group, factor)
        return torch.cat(list(joined.split(list(counts)))[::-1])

    distributed._Gather.forward = staticmethod(reversed_forward)


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    groups = {size: dist.new_group(list(range(size))) for size in COUNTS if size > 1}
    found: dict[str, dict[str, Tensor]] = {}
    for size, group in groups.items():
        if rank < size:
            for case in CASES:
                found[f"{size} {case}"] = results(case, size, rank, group)
    reverse_the_gathered_rows()
    found["4 wrong order"] = results("crossclr queue", 4, rank, groups[4])
    torch.save(found, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
