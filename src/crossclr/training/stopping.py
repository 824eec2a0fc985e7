"""Ctrl-C and SIGTERM as a wish that is granted at the end of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@contextmanager
def stop_on_signal() -> Iterator[Callable[..., bool]]:
    """Gives a function that tells whether any process of a Fabric (without one, this process) was asked to stop.

    The first Ctrl-C or SIGTERM is remembered until the step is done; a second Ctrl-C ends at once.
    """
    asked = threading.Event()

    def remember(number: int, frame: object) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    def anyone_asked(fabric: Fabric | None = None) -> bool:
        if fabric is None or fabric.world_size == 1:
            return asked.is_set()
        votes = fabric.all_reduce(torch.tensor(float(asked.is_set())), reduce_op="sum")
        return bool(float(votes))  # type: ignore[arg-type]  # a tensor goes in, so a tensor comes out

    if threading.current_thread() is not threading.main_thread():
        yield anyone_asked
        return
    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield anyone_asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
