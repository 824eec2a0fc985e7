"""A full disk, reported with the path and the next step."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFullError(OSError):
    """There is no room for a file: the disk is full, or a quota or a limit on file sizes is reached."""

    def __init__(self, number: int, reason: str, path: Path, next_step: str) -> None:
        super().__init__(f"{reason} while writing {path}; {next_step}")
        self.errno, self.reason, self.path, self.next_step = number, reason, path, next_step

    def __reduce__(self) -> tuple[Any, ...]:  # worker processes send their errors to the parent
        return type(self), (self.errno, self.reason, self.path, self.next_step)


@contextmanager
def naming_full_disk(path: Path, next_step: str = "free some space and run the command again") -> Iterator[None]:
    """Turn the system's error for a full disk into a `DiskFullError` that names ``path`` and says what to do.

    An outer block replaces the path and next step of an inner one, because it knows more about the command.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in CODES:
            raise
        reason = error.reason if isinstance(error, DiskFullError) else error.strerror
        raise DiskFullError(error.errno, str(reason), path, next_step) from error
