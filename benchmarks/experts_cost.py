"""What experts with weights cost: a training step, ranks and their memory.

    python -m benchmarks.experts_cost

The step has LSMDC's dimensions: 64 clips of 20 rows, five experts, 12 BERT tokens, dim 768. Ratios are to +, the same
experts joined on the channel axis for one transformer.
"""

from __future__ import annotations

import resource
import statistics
import time

import torch

from crossclr.data import Batch, Inputs, Ragged
from crossclr.evaluation.ranks import retrieval_ranks
from crossclr.losses import CrossCLR
from crossclr.models import ModelConfig, build_model

DIMS = {"action": 2048, "appearance": 2048, "object": 2048, "scene": 2208, "howto100m": 512}
BATCH, ROWS, TOKENS = 64, 20, 12


def step(encoder: dict[str, object]) -> float:
    """The median of five training steps in seconds."""
    torch.manual_seed(0)
    width = sum(DIMS.values())
    config = ModelConfig.model_validate(
        {"dim": 768, "encoder": {"heads": 16, "pooler": "max"}, "encoders": {"video": encoder}}
    )
    model = build_model(config, {"video": width, "text": 1536}, two_level=False)
    loss, optimiser = CrossCLR.lsmdc(queue_size=0), torch.optim.AdamW(model.parameters())
    loss.experts = len(model.experts) or 1
    inputs = {
        name: Ragged(torch.randn(BATCH * rows, dim), torch.full((BATCH,), rows))
        for name, rows, dim in (("video", ROWS, width), ("text", TOKENS, 1536))
    }
    batch = Batch(
        inputs={name: Inputs(rows) for name, rows in inputs.items()},
        present={name: torch.ones(BATCH, dtype=torch.bool) for name in inputs},
        pooled={name: rows.mean() for name, rows in inputs.items()},
        clip_counts=torch.ones(BATCH, dtype=torch.int64),
        ids=torch.arange(BATCH),
        video_ids=torch.arange(BATCH),
        keys=tuple(map(str, range(BATCH))),
    )
    seconds = []
    for _ in range(6):
        began = time.process_time()
        found = model(batch)
        optimiser.zero_grad()
        vectors = {name: found[f"clip/{name}"] for name in inputs}
        loss(vectors, features=batch.pooled, ids=batch.ids).backward()
        optimiser.step()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds[1:])


def rows(count: int, experts: int, dim: int) -> torch.Tensor:
    """Unit vectors of experts, of which a third is absent."""
    vectors = torch.nn.functional.normalize(torch.randn(count, experts, dim), dim=2)
    return (vectors * (torch.rand(count, experts, 1) < 0.67)).flatten(1)


def main() -> None:
    """Print everything."""
    torch.set_num_threads(1)
    joined = step({"kind": "transformer"})
    print(f"step of +: {joined:.2f} s of processor time")
    for fusion in ("mee", "ce"):
        print(f"step of {fusion}: {step({'kind': 'experts', 'fusion': fusion, 'experts': DIMS}) / joined:.2f} x +")
    queries, items = rows(1_000, 5, 256), rows(1_000, 5, 256)
    began = time.process_time()
    retrieval_ranks(queries, items, experts=5)
    print(f"ranks of 1,000 x 1,000: {time.process_time() - began:.2f} s")
    queries, items = rows(100_000, 3, 32), rows(10_000, 3, 32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    retrieval_ranks(queries, items, torch.arange(100_000) % 10_000, experts=3)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    took = time.process_time() - began
    print(f"ranks of 100,000 x 10,000: {took:.1f} s, {grown:.0f} MB above the {(before / 1024):.0f} MB of its rows")


if __name__ == "__main__":
    main()
