"""Seeds and states of all random generators."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed torch, numpy and Python."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (code that uses numpy's global generator must be repeatable too)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """States of the generators of torch (CPU and every CUDA device), numpy and Python."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 (the global one)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (str(name), [int(key) for key in keys], int(position), int(has_gauss), float(cached)),
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put the generators back into the states that ``random_state`` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))  # noqa: NPY002
    random.setstate(state["python"])
