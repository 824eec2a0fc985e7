"""Keep freed memory for the next step, and return it when there is too much of it."""

import contextlib
import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGEST = 2**31 - 1


class _Heap(ctypes.Structure):
    """What glibc's mallinfo2 returns: bytes and numbers of blocks."""

    _fields_ = [(f"field_{number}", ctypes.c_size_t) for number in range(8)] + [
        ("fordblks", ctypes.c_size_t),  # bytes in freed blocks
        ("keepcost", ctypes.c_size_t),
    ]


def keep_freed_memory() -> bool:
    """Stop glibc from returning large freed blocks to the system; returns whether the setting was changed.

    Every layer of a network frees and allocates the same tens of megabytes. The system clears and maps returned pages
    again, which takes up to half of the time on a CPU. Nothing changes on other systems, or if the user has set one of
    glibc's own variables.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _LARGEST))


def return_freed_memory(above: int = 0) -> None:
    """Return freed blocks to the system if they take more than ``above`` bytes; nothing happens without glibc.

    Batches of many sizes leave gaps that no later block fits into, so a long training would hold more and more.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library, an older one, another system
        library = ctypes.CDLL(None)
        if above:
            library.mallinfo2.restype = _Heap
            if library.mallinfo2().fordblks <= above:
                return
        library.malloc_trim(0)
