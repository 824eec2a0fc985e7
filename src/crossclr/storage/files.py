"""A full disk, reported with the path and the next step.

Which process owns a temporary file or a lock, and whether that process still runs.

Temporary names that carry their owner, so that the leftovers of dead processes can be removed safely.

Write a file so that readers see the old one or the complete new one, also after a crash.

Everything is written under a temporary name next to its target, synced to the disk, renamed, and the parent folder is
synced. An error removes the temporary file; a killed process leaves it behind, for `sweep` to remove.
"""

import errno
import itertools
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossclr.errors import CrossCLRError

CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SQLITE_CODES = (13, 778)  # SQLITE_FULL and SQLITE_IOERR_WRITE


class DiskFullError(CrossCLRError, OSError):
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
    except Exception as error:
        if isinstance(error, DiskFullError):
            raise DiskFullError(error.errno or errno.ENOSPC, error.reason, path, next_step) from error
        number = _full_disk_code(error)
        if number is None:
            raise
        raise DiskFullError(number, os.strerror(number), path, next_step) from error


def _full_disk_code(error: Exception) -> int | None:
    """The system's code if an error means that there is no room, also as SQLite, NumPy and faiss report it."""
    if getattr(error, "sqlite_errorcode", None) in SQLITE_CODES:
        return errno.ENOSPC
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in CODES else None
    text = str(error)  # NumPy and faiss give no code: "12 requested and 0 written", "write error ... No space left ..."
    if isinstance(error, OSError) and text.endswith(" written"):
        return errno.ENOSPC
    return next((code for code in CODES if os.strerror(code) in text), None) if type(error) is RuntimeError else None


@dataclass(frozen=True)
class Owner:
    """A process: its host, its id, and its start time, which separates it from a later process with the same id."""

    host: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> "Owner":
        """This process."""
        return cls(socket.gethostname(), os.getpid(), start_time(os.getpid()))

    def alive(self) -> bool:
        """Whether the process still runs. A process on another host counts as running, because nobody can check."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it runs and belongs to another user
            pass
        return start_time(self.pid) == self.started


def start_time(pid: int) -> int:
    """Clock ticks from boot to the start of a process, or 0 on systems without ``/proc``."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[19])


SUFFIX = ".partial"
_NAME = re.compile(r"\..+\.(?P<host>[^.@]*)@(?P<pid>\d+)-(?P<started>\d+)-\d+" + re.escape(SUFFIX))
_numbers = itertools.count()


def temporary_path(target: Path) -> Path:
    """A unique hidden name next to ``target``, so that a rename stays on one file system."""
    owner = Owner.current()
    mark = f"{_short(owner.host)}@{owner.pid}-{owner.started}-{next(_numbers)}"
    return target.with_name(f".{target.name}.{mark}{SUFFIX}")


def sweep(folder: Path, *, recursive: bool = False) -> list[Path]:
    """Remove temporary files and folders whose owner no longer runs; returns their paths."""
    pattern = f".*{SUFFIX}"
    removed = []
    for path in list(folder.rglob(pattern) if recursive else folder.glob(pattern)):
        found = _NAME.fullmatch(path.name)
        if found is None or _owner_alive(found):
            continue
        remove(path)
        removed.append(path)
    return removed


def remove(path: Path) -> None:
    """Remove a file or a folder, or nothing if it is absent."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _owner_alive(found: re.Match[str]) -> bool:
    here = Owner.current().host
    host = here if found["host"] == _short(here) else found["host"]
    return Owner(host, int(found["pid"]), int(found["started"])).alive()


def _short(host: str) -> str:
    return re.sub(r"[^\w-]", "-", host)[:40]


def check_free(path: Path, force: bool = False) -> None:
    """Refuse to write over a file that exists, unless a person asked for it.

    Raises:
        FileExistsError: there is one.
    """
    if path.exists() and not force:
        raise FileExistsError(f"{path} already exists; choose another name, or replace it with --force")


def write_file(path: Path, content: bytes | str) -> None:
    """Write a whole file at once; text is encoded as UTF-8."""
    with new_file(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, content: Any) -> None:
    """Write a value as indented JSON."""
    write_file(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it becomes ``path`` when the block ends without an error."""
    temporary = temporary_path(path)
    with naming_full_disk(path):
        try:
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file's bytes or a folder's names are on the disk; nothing where a folder cannot be opened."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # Windows cannot open folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
