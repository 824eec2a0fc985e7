"""One writer at a time for a run folder, an index or an output."""

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from crossclr.errors import CrossCLRError
from crossclr.notices import warn
from crossclr.storage.files import Owner


class LockedError(CrossCLRError, ValueError):
    """Another process writes to this folder."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock."""

    owner: Owner
    since: float  # seconds since 1970 at which it took the lock

    @property
    def age(self) -> float:
        """Seconds since the lock was taken."""
        return max(0.0, time.time() - self.since)


class FolderLock:
    """A lock for the writers of a folder; the system releases it when its process ends, however it ends.

    Args:
        folder: a folder, which need not exist yet; the lock is the hidden file ``.<name>.lock`` next to it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder.absolute().with_name(f".{folder.absolute().name}.lock")
        self._file: IO[bytes] | None = None
        self._made: list[Path] = []  # parents that this lock created

    def __enter__(self) -> "FolderLock":
        self._made = [parent for parent in self.path.parents if not parent.exists()]
        file = self._open()
        while not _is_at(file, self.path):  # its last holder removed it in the meantime
            file.close()
            file = self._open()
        file.truncate(0)
        file.write(json.dumps({**asdict(Owner.current()), "since": time.time()}).encode())
        file.flush()
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self.path.unlink(missing_ok=True)
            self._file.close()  # closing releases the lock
            self._file = None
        with contextlib.suppress(OSError):  # in use by now
            for parent in self._made:
                parent.rmdir()

    def _open(self) -> IO[bytes]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("ab")
        if not _take(file, self.folder):
            file.close()
            raise LockedError(f"{self._words()} is writing to {self.folder}; wait until it has finished")
        return file

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


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _take(file: IO[bytes], folder: Path) -> bool:
    """Whether the lock was free; on a system without such locks always true, with a warning."""
    try:
        import fcntl
    except ImportError:
        warn(f"this system has no locks for files; make sure that no other process writes to {folder} at the same time")
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
