"""Threads, determinism and rounding of torch while a run trains."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from crossclr.training.run_config import TrainingConfig


@contextlib.contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Use this number of CPU threads (None: no change) and restore the number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def tiny_numbers_as_zero() -> Iterator[None]:
    """Round numbers below 1e-38 to zero, and restore what was set before.

    Such numbers slow CPUs down: one in a hundred makes a matrix product six times as slow (benchmarks/tiny_numbers.py).
    Many occur once the loss is small: after 20 epochs of the two-level model, steps took twice as long. Worker threads
    keep the setting that they started with.
    """
    before = (torch.tensor(1e-40) * 1).item() == 0  # torch has no function that reports it
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextlib.contextmanager
def torch_settings(config: TrainingConfig) -> Iterator[None]:
    """Use deterministic algorithms and the number of threads of the config; restore everything afterwards."""
    before = torch.get_deterministic_debug_mode()
    memory: Any = torch.utils.deterministic
    filling = memory.fill_uninitialized_memory
    # not use_deterministic_algorithms, which imports the compiler: two seconds
    torch.set_deterministic_debug_mode("warn" if config.deterministic or before else "default")
    memory.fill_uninitialized_memory = False  # costs time and only helps to debug
    try:
        with torch_threads(config.threads), tiny_numbers_as_zero():
            yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = filling
