"""A matrix product with some numbers below 1e-38, as they are and rounded to zero as while a run trains.

The sizes are those of a linear layer on the clips of 64 videos, on one thread.

Run it with ``python -m benchmarks.tiny_numbers``.
"""

from __future__ import annotations

import torch

from benchmarks.measure import side_by_side
from crossclr.training.torch_settings import tiny_numbers_as_zero, torch_threads

SHARES = (0.0, 0.01, 0.1, 1.0)  # of the gradient


def run() -> dict[str, float]:
    """How many times as long the product takes with such numbers, by their share."""
    generator = torch.Generator().manual_seed(0)
    gradient, weights = torch.randn(496, 384, generator=generator), torch.randn(384, 384, generator=generator)
    order = torch.rand(gradient.shape, generator=generator)
    found = {}
    with torch_threads(1):
        for share in SHARES:
            mixed = torch.where(order < share, gradient * 1e-39, gradient)

            def as_they_are(mixed: torch.Tensor = mixed) -> None:
                torch.mm(mixed, weights)

            def as_zero(mixed: torch.Tensor = mixed) -> None:
                with tiny_numbers_as_zero():
                    torch.mm(mixed, weights)

            seconds = side_by_side({"as they are": as_they_are, "as zero": as_zero}, rounds=5, calls=3)
            found[f"{share:.0%} tiny: ratio"] = seconds["as they are"] / seconds["as zero"]
    return found


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:20s}{value:8.1f}")
