"""Inputs and options of the stored numbers in ``tests/fixtures``; `write` makes them.

The numbers come from the code that knew two modalities, A and B, only. The code for any number of named modalities has
to give the same ones. ``python -m tests.losses.two_modalities`` would write them again, with the code as it is then.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch

from crossclr.losses import build_loss

STORED = Path(__file__).parents[1] / "fixtures" / "losses_two_modalities.npz"
DIMS = {"za": 6, "zb": 6, "a": 5, "b": 4}
SIZES = (10, 7, 12)  # rows of the batch, step by step
CASES: dict[str, dict[str, object]] = {
    "crossclr": {},
    "crossclr sum": {"intra_mode": "sum"},
    "crossclr queue": {"queue_size": 25},
    "crossclr queue sum": {"queue_size": 25, "intra_mode": "sum", "intra_weight": 0.5},
    "crossclr queue chunks": {"queue_size": 25, "chunk_size": 3, "prune_by": "quantile", "prune_threshold": 0.6},
    "crossclr queue smaller than a batch": {"queue_size": 4},
    "crossclr queue with little that is older": {"queue_size": 14},
    "crossclr positives": {"extra_positives": 2, "queue_size": 25, "prune_threshold": 0.5, "weight_scale": 0.1},
    "crossclr released": {"self_logit": "zero", "prune_threshold": None, "weight_scale": None},
    "crossclr inter-modal only": {"intra_weight": 0.0, "queue_size": 25},
    "clip": {},
    "clip chunks": {"chunk_size": 4, "learnable": False},
    "ntxent": {},
    "maxmargin": {},
    "milnce": {},
    "dcl": {"temperature": 0.1},
    "siglip": {},
}
MOVED = ("milnce", "dcl")  # on another engine since: equal up to rounding


def batch(
    step: int, dtype: torch.dtype, size: int | None = None, dims: dict[str, int] = DIMS
) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(step)
    size = SIZES[step] if size is None else size
    rows = {name: torch.from_numpy(rng.standard_normal((size, dim)) + 0.3).to(dtype) for name, dim in dims.items()}
    return {**rows, "ids": torch.from_numpy(rng.integers(0, 12 if size < 20 else 10 * size, size))}


def results(
    case: str, dtype: torch.dtype, sizes: tuple[int, ...] = SIZES, dims: dict[str, int] = DIMS
) -> list[np.ndarray]:
    """Value and gradients of each step."""
    then = {"min_effective": 0.0, "positive_weight": 0.15} if case.startswith("crossclr") else {}  # defaults since
    loss_fn = build_loss(case.split()[0], **{**then, **CASES[case]}).to(dtype)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step, size in enumerate(sizes):
            inputs = batch(step, dtype, size, dims)
            leaves = [inputs[name].requires_grad_() for name in ("za", "zb")]
            loss_fn.zero_grad()
            loss = loss_fn(**inputs)
            loss.backward()
            found.append(loss.detach().numpy().reshape(1))
            found += [leaf.grad.numpy() for leaf in leaves]
            found += [p.grad.numpy().reshape(1).copy() for p in loss_fn.parameters() if p.grad is not None]
    return found


def write(path: Path = STORED, **shapes: object) -> None:
    dtypes = {"float32": torch.float32, "float64": torch.float64}
    numbers = {
        f"{case}/{name}/{place}": value
        for case in CASES
        for name, dtype in dtypes.items()
        for place, value in enumerate(results(case, dtype, **shapes))
    }
    np.savez_compressed(path, **numbers)


if __name__ == "__main__":
    write()
