"""Freed memory is kept for the next step."""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell glibc not to give large blocks back to the system each time that they are freed.

    A network frees and asks for the same tens of megabytes at every layer; returned to the system, each page is
    cleared and mapped again, which takes up to half of the time on a CPU. Other systems, and users who set glibc's own
    variables, are left alone.

    Returns:
        Whether it was done.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _LARGEST))
