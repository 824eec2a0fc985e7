"""Threads and determinism of torch while a run trains."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from crossclr.training.config.run_config import TrainingConfig


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
def torch_settings(config: TrainingConfig) -> Iterator[None]:
    """Use deterministic algorithms and the number of threads of the config; restore everything afterwards."""
    before = torch.get_deterministic_debug_mode()
    memory: Any = torch.utils.deterministic
    filling = memory.fill_uninitialized_memory
    # not use_deterministic_algorithms, which imports the compiler: two seconds
    torch.set_deterministic_debug_mode("warn" if config.deterministic or before else "default")
    memory.fill_uninitialized_memory = False  # costs time and only helps to debug
    try:
        with torch_threads(config.threads):
            yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = filling
