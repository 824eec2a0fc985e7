"""Ranks of N queries in a gallery of N against a full sort: time and peak memory.

    python -m benchmarks.ranks              100,000 x 100,000 at 256 dimensions, about a minute on two cores
    python -m benchmarks.ranks --rows 20000

The sort is measured on 10,000 x 10,000 (all scores by one matrix product, `numpy.argsort` of each row, position of the
target) and scaled by the number of pairs; the logarithm of a sort's cost is left out, in the sort's favour.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

ROWS, DIM, SORTED = 100_000, 256, 10_000

CHILD = """
import json, resource, sys, time
from pathlib import Path
import torch
from crossclr.evaluation import retrieval_ranks

def peak():
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would also know the peak of the process that started this one
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

rows, dim = int(sys.argv[1]), int(sys.argv[2])
small = torch.randn(64, dim, generator=torch.Generator().manual_seed(1))
retrieval_ranks(small, small)  # libraries are loaded and threads started before the measurement
before = peak()
generator = torch.Generator().manual_seed(0)
gallery = torch.randn(rows, dim, generator=generator)
queries = torch.randn(rows, dim, generator=generator).add_(gallery, alpha=0.3)
started = time.perf_counter()
ranks = retrieval_ranks(queries, gallery, progress=False)
seconds = time.perf_counter() - started
print(json.dumps({"seconds": seconds, "growth": peak() - before, "mean_rank": float(ranks.mean())}))
"""


def measure_ranks(rows: int, dim: int) -> dict[str, float]:
    """Time and growth of peak memory (inputs included) in a separate process."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(rows), str(dim)], check=True, capture_output=True, text=True
    )
    result: dict[str, float] = json.loads(child.stdout.strip().splitlines()[-1])
    return result


def measure_sort(rows: int, dim: int) -> dict[str, float]:
    """Time of the same ranks by sorting every row, separately for the product, the sort and finding the target."""
    import numpy as np
    import torch

    generator = torch.Generator().manual_seed(0)
    gallery = torch.nn.functional.normalize(torch.randn(rows, dim, generator=generator), dim=1)
    queries = torch.nn.functional.normalize(gallery + torch.randn(rows, dim, generator=generator) * 0.3, dim=1)
    started = time.perf_counter()
    scores = (queries @ gallery.T).neg_().numpy()  # (rows, rows)
    product = time.perf_counter() - started
    started = time.perf_counter()
    order = np.argsort(scores, axis=1)
    numpy_sort = time.perf_counter() - started
    started = time.perf_counter()
    found = np.argmax(order == np.arange(rows)[:, None], axis=1)
    find = time.perf_counter() - started
    started = time.perf_counter()
    torch.argsort(torch.from_numpy(scores[: rows // 10]), dim=1)
    torch_sort = (time.perf_counter() - started) * 10
    return {
        "product": product,
        "numpy_sort": numpy_sort,
        "torch_sort": torch_sort,
        "find": find,
        "mean_rank": float(found.mean()) + 1,
    }


def run(rows: int = ROWS, dim: int = DIM, sorted_rows: int = SORTED) -> dict[str, Any]:
    """Measure both; ratios compare with the complete sorting method, scaled to the same number of pairs."""
    ranks = measure_ranks(rows, dim)
    sort = measure_sort(sorted_rows, dim)
    scale = (rows / sorted_rows) ** 2
    by_numpy = (sort["product"] + sort["numpy_sort"] + sort["find"]) * scale
    by_torch = (sort["product"] + sort["torch_sort"] + sort["find"]) * scale
    return {
        "rows": rows,
        "dim": dim,
        "seconds": ranks["seconds"],
        "peak_growth_gb": ranks["growth"] / 1e9,
        "pairs_per_second": rows * rows / ranks["seconds"],
        "gflops": 2 * dim * rows * rows / ranks["seconds"] / 1e9,
        "numpy_argsort_seconds_extrapolated": by_numpy,
        "torch_argsort_seconds_extrapolated": by_torch,
        "speedup_over_numpy_argsort": by_numpy / ranks["seconds"],
        "speedup_over_torch_argsort": by_torch / ranks["seconds"],
        "sort_measured": sort,
        "sorted_rows": sorted_rows,
    }


def main() -> None:
    """Print a table, or JSON."""
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(description="Exact ranks tile by tile against a full sort.")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--dim", type=int, default=DIM)
    parser.add_argument("--sorted-rows", type=int, default=SORTED, help="size at which the sort is measured")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = run(options.rows, options.dim, options.sorted_rows)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    table = Table(title=f"Ranks of {result['rows']:,} x {result['rows']:,} at {result['dim']} dimensions")
    for column in ("way", "seconds", "ranks are faster by", "peak memory"):
        table.add_column(column, justify="left" if column == "way" else "right")
    table.add_row("tiles (measured)", f"{result['seconds']:.1f}", "", f"{result['peak_growth_gb']:.2f} GB")
    whole = f"{4 * result['rows'] ** 2 * 3 / 1e9:.0f} GB"  # scores in float32 and an order in int64
    for name in ("numpy", "torch"):
        table.add_row(
            f"{name}.argsort (from {result['sorted_rows']:,})",
            f"{result[f'{name}_argsort_seconds_extrapolated']:.0f}",
            f"{result[f'speedup_over_{name}_argsort']:.1f}x",
            whole,
        )
    Console().print(table)


if __name__ == "__main__":
    main()
