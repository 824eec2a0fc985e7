"""One writer at a time in a run folder or an index."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from crossclr.storage.owner import Owner

NAME = ".lock"


class LockedError(ValueError):
    """Another process writes to this folder."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock.

    Args:
        owner: the process.
        since: seconds since 1970 at which it took the lock.
    """

    owner: Owner
    since: float

    @property
    def age(self) -> float:
        """Seconds since the lock was taken."""
        return max(0.0, time.time() - self.since)


class FolderLock:
    """A lock for the writers of a folder; the system releases it when its process ends, however it ends.

    Args:
        folder: an existing folder; the lock is the file ``.lock`` in it.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with FolderLock(folder):
        ...     FolderLock(folder).holder().owner == Owner.current()
        True
        >>> FolderLock(folder).holder() is None
        True
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        self._file: IO[bytes] | None = None

    def __enter__(self) -> FolderLock:
        file = self.path.open("ab")
        if not _take(file):
            file.close()
            raise LockedError(f"{self._words()} is writing to {self.folder}; wait until it has finished")
        file.truncate(0)
        file.write(json.dumps({**asdict(Owner.current()), "since": time.time()}).encode())
        file.flush()
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()  # closing releases the lock
            self._file = None

    def holder(self) -> Holder | None:
        """The process that holds the lock, or None; a process that died does not hold it."""
        try:
            values: dict[str, Any] = json.loads(self.path.read_bytes())
            holder = Holder(Owner(values["host"], values["pid"], values["started"]), values["since"])
        except (OSError, ValueError, KeyError):
            return None
        return holder if holder.owner.alive() else None

    def _words(self) -> str:
        holder = self.holder()
        if holder is None:  # it has the lock but has not written its name yet
            return "another process"
        return f"another process ({holder.owner.pid} on {holder.owner.host}, for {holder.age:.0f} s)"


def _take(file: IO[bytes]) -> bool:
    """Whether the lock was free; always true on systems without such locks."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
