"""Reading in background threads while the caller works, with results in order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def read_ahead(
    read: Callable[[Item], Result], items: Iterable[Item], workers: int, pending: int
) -> Generator[Result, None, None]:
    """``read(item)`` for each item, in order; at most ``pending`` results are in work or waiting at any time.

    ``read`` runs in a background thread; what it raises is raised at its own result. Closing the generator stops the
    threads.

    Example:
        >>> list(read_ahead(str.upper, "abc", workers=2, pending=3))
        ['A', 'B', 'C']
    """
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="crossclr-read")
    todo = iter(items)
    try:
        while True:
            for item in todo:
                waiting.append(pool.submit(read, item))
                if len(waiting) >= pending:
                    break
            if not waiting:
                return
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
