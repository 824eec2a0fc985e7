"""Keep freed memory for the next step."""

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGEST = 2**31 - 1


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
