"""Ctrl-C, SIGTERM and SIGHUP (a closed terminal) stop a training at the end of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lightning_fabric import Fabric


StopRequested = Callable[["Fabric"], bool]


@contextmanager
def stop_on_signal() -> Iterator[StopRequested]:
    """A function that returns whether any process of a Fabric received a request to stop.

    The first Ctrl-C, SIGTERM or SIGHUP is remembered until the step is finished; a second Ctrl-C stops at once.
    """
    requested = threading.Event()

    def remember(number: int, frame: object) -> None:
        if requested.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        requested.set()

    def anywhere(fabric: Fabric) -> bool:
        if fabric.world_size == 1:
            return requested.is_set()
        votes = fabric.all_reduce(torch.tensor(float(requested.is_set())), reduce_op="sum")
        return bool(float(votes))  # type: ignore[arg-type]  # a tensor goes in, so a tensor comes out

    if threading.current_thread() is not threading.main_thread():
        yield anywhere
        return
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has no SIGHUP
    numbers = [getattr(signal, name) for name in names]
    # an ignored signal stays ignored: `nohup crossclr train` outlives its terminal
    wanted = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, remember) for number in wanted}
    try:
        yield anywhere
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
