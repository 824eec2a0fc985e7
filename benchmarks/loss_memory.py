"""Memory that one huge CrossCLR step adds, with and without chunks."""

from __future__ import annotations

import json
import sys
import time

import torch

from benchmarks.measure import in_own_process, peak_megabytes
from crossclr.losses import CrossCLR

SIZE, DIM, CHUNK = 32_768, 256, 512


def measure(size: int, chunk: int | None) -> None:
    """Run one forward and backward pass in this process and print the added memory."""
    torch.manual_seed(0)
    za, zb = torch.randn(size, DIM, requires_grad=True), torch.randn(size, DIM, requires_grad=True)
    a, b = torch.randn(size, 64) + 0.2, torch.randn(size, 64) + 0.2
    loss_fn = CrossCLR(chunk_size=chunk)
    loss_fn(za[:64], zb[:64], a[:64], b[:64]).backward()  # libraries loaded, threads started
    before, start = peak_megabytes(), time.perf_counter()
    loss_fn(za, zb, a, b).backward()
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "added_mb": peak_megabytes() - before}))


def run() -> dict[str, float]:
    """Megabytes on top of the inputs: N=32,768 in chunks, N=8,192 with and without chunks."""
    big = in_own_process("benchmarks.loss_memory", str(SIZE), str(CHUNK))
    small = in_own_process("benchmarks.loss_memory", "8192", str(CHUNK))
    whole = in_own_process("benchmarks.loss_memory", "8192", "0")
    return {
        "n32768_chunked_added_mb": big["added_mb"],
        "n32768_chunked_seconds": big["seconds"],
        "n32768_one_similarity_matrix_mb": SIZE * SIZE * 4 / 2**20,
        "n8192_chunked_added_mb": small["added_mb"],
        "n8192_whole_added_mb": whole["added_mb"],
    }


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(int(sys.argv[1]), int(sys.argv[2]) or None)
    else:
        for name, value in run().items():
            print(f"{name:36s}{value:10.2f}")
