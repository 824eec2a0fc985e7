"""Exact ranks of 200,000 × 200,000, and of 1,000,000 × 1,000,000 extrapolated from a slice of the queries.

    python -m benchmarks.scale_ranks            about five minutes on two cores

The slice has all million gallery rows and some of the queries, and its process also holds all million queries, as the
whole computation would. Time grows as the number of queries, memory does not.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from benchmarks.measure import in_own_process, peak_megabytes
from crossclr.evaluation import retrieval_ranks

DIM, WHOLE, MILLION, SLICE = 128, 200_000, 1_000_000, 16_384


def measure(rows: int, asked: int) -> None:
    """Ranks of the first ``asked`` of ``rows`` queries among ``rows`` gallery rows."""
    generator = torch.Generator().manual_seed(0)
    gallery = torch.randn(rows, DIM, generator=generator)
    queries = torch.randn(rows, DIM, generator=generator).add_(gallery, alpha=0.3)
    start = time.perf_counter()
    ranks = retrieval_ranks(queries[:asked], gallery, torch.arange(asked), progress=False)
    seconds = time.perf_counter() - start
    held = queries.numel() - queries[:asked].numel()
    unit = held * 4 / 2**20  # the unit rows of the other queries, which the whole computation would hold as well
    print(json.dumps({"seconds": seconds, "peak_mb": peak_megabytes() + unit, "median_rank": float(ranks.median())}))


def run() -> dict[str, float]:
    """Seconds, and the peak memory of the whole process in megabytes."""
    whole = in_own_process("benchmarks.scale_ranks", str(WHOLE), str(WHOLE))
    part = in_own_process("benchmarks.scale_ranks", str(MILLION), str(SLICE))
    pairs = WHOLE**2 / whole["seconds"]
    return {
        "n200k_seconds": whole["seconds"],
        "n200k_peak_mb": whole["peak_mb"],
        "n200k_million_pairs_a_second": pairs / 1e6,
        "slice_of_million_seconds": part["seconds"],
        "million_peak_mb": part["peak_mb"],
        "million_seconds_from_slice": part["seconds"] * MILLION / SLICE,
        "million_seconds_from_200k": MILLION**2 / pairs,
    }


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(int(sys.argv[1]), int(sys.argv[2]))
    else:
        for name, value in run().items():
            print(f"{name:36s}{value:12.1f}")
