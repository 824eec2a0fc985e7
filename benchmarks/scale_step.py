"""One exact CrossCLR step with a queue on huge batches: time against the bare tiled products, and memory.

    python -m benchmarks.scale_step                     N = 8k, 16k, 32k, 64k; about ten minutes on two cores
    python -m benchmarks.scale_step 4096 8192           other sizes

The queue holds twice the batch: the batch itself and as many older samples, so everything grows as N². The bare
products are the matrix products that no exact implementation can leave out, forward and backward, in the same tiles and
with nothing between them. They are computed for a part of the tiles and scaled up.
"""

from __future__ import annotations

import itertools
import json
import sys
import time

import torch

from benchmarks.measure import in_own_process, peak_megabytes, start_peak
from crossclr.losses import CrossCLR

SIZES = (8_192, 16_384, 32_768, 65_536)
DIM, FEATURES, CHUNK = 256, 64, 256
BARE_TILES = 32


def bare_products(size: int, tiles: int) -> float:
    """Seconds for the products of all tiles in both directions, extrapolated from some of them."""
    x, y, old = (torch.nn.functional.normalize(torch.randn(size, DIM), dim=1) for _ in range(3))
    grad_x, grad_y = torch.zeros(size, DIM), torch.zeros(size, DIM)
    start = time.perf_counter()
    for tile in range(tiles):
        rows = slice(tile * CHUNK, (tile + 1) * CHUNK)
        for keys, grad_keys in ((y, grad_y), (x, grad_x), (old, None)):
            slope = x[rows] @ keys.T  # (chunk, N)
            grad_x[rows] += slope @ keys
            if grad_keys is not None:
                grad_keys.addmm_(slope.T, x[rows])
    return (time.perf_counter() - start) * 2 * (size / CHUNK) / tiles


def measure(size: int) -> None:
    """Run one forward and backward pass between two measurements of the products, and print the cost."""
    torch.manual_seed(0)
    za, zb = torch.randn(size, DIM, requires_grad=True), torch.randn(size, DIM, requires_grad=True)
    a, b = torch.randn(size, FEATURES) + 0.2, torch.randn(size, FEATURES) + 0.2
    tiles = min(BARE_TILES, size // CHUNK)
    loss_fn = CrossCLR(queue_size=2 * size, chunk_size=CHUNK)
    ids = torch.arange(size)
    rows = torch.nn.functional.normalize(torch.randn(size, DIM), dim=1)
    for name, features in (("a", a), ("b", b)):  # the older half of the queues
        loss_fn.queues.of(name).push(torch.nn.functional.normalize(features.flip(0), dim=1), rows, ids + size)
    before = bare_products(size, tiles)
    held, start = start_peak(), time.perf_counter()
    loss_fn(za, zb, a, b, ids).backward()
    seconds = time.perf_counter() - start
    added = peak_megabytes() - held
    bare = (before + bare_products(size, tiles)) / 2
    print(json.dumps({"seconds": seconds, "bare_seconds": bare, "added_mb": added}))


def run(sizes: tuple[int, ...] = SIZES) -> dict[str, float]:
    """Seconds, megabytes on top of inputs and queue, and ratios; each size in a separate process."""
    results: dict[str, float] = {}
    seconds = {}
    for size in sizes:
        found = in_own_process("benchmarks.scale_step", "--measure", str(size))
        seconds[size] = found["seconds"]
        results[f"n{size}_seconds"] = found["seconds"]
        results[f"n{size}_times_bare_products"] = found["seconds"] / found["bare_seconds"]
        results[f"n{size}_added_mb"] = found["added_mb"]
    for small, large in itertools.pairwise(sizes):
        wanted = (large / small) ** 2
        results[f"n{large}_over_n{small}_against_square"] = seconds[large] / seconds[small] / wanted
    results["one_similarity_matrix_mb"] = max(sizes) ** 2 * 4 / 2**20
    return results


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(int(sys.argv[2]))
    else:
        for name, value in run(tuple(map(int, sys.argv[1:])) or SIZES).items():
            print(f"{name:44s}{value:12.3f}")
