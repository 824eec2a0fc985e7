"""The last few decoded blocks of files."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Block = TypeVar("Block")


class BlockCache(Generic[Key, Block]):
    """Keeps the blocks that were used last, for any number of threads.

    Example:
        >>> cache = BlockCache(str.upper, size=2)
        >>> [cache[key] for key in "abca"], len(cache)
        (['A', 'B', 'C', 'A'], 2)
    """

    def __init__(self, load: Callable[[Key], Block], size: int) -> None:
        self._load, self._size = load, size
        self._kept: OrderedDict[Key, Block] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, key: Key) -> Block:
        with self._lock:  # one thread decodes; the others soon find the block here
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            block = self._kept[key] = self._load(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
            return block
