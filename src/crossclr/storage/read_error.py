"""One way in: every failure while reading a file becomes one line with the file, the entry and the next step."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crossclr.extras import MissingExtraError
from crossclr.storage.disk_full import DiskFullError


class ReadError(ValueError):
    """A file that is absent, damaged or invalid; the message names the file and says how to fix it."""


@contextmanager
def reading(
    path: str | os.PathLike[str],
    form: str,
    *,
    entry: str | None = None,
    advice: str = "copy or write it again",
    kind: type[ReadError] = ReadError,
) -> Iterator[None]:
    """Read a file in this block: whatever a library raises for a damaged file becomes an error of this kind.

    The message names the file, its format, the entry that is read, and the advice: what the user can do.
    """
    try:
        yield
    except (ReadError, DiskFullError, MissingExtraError):
        raise
    except Exception as error:  # libraries raise many kinds of error for a damaged file
        what = "" if entry is None else f"entry {entry!r} "
        raise kind(f"{path}: {what}cannot be read as {form} ({_reason(error)}); {advice}") from error


def check_regular(path: Path, kind: type[ReadError] = ReadError) -> int:
    """The size of a file in bytes.

    Example:
        >>> check_regular(Path("/dev/null"))
        Traceback (most recent call last):
        ...
        crossclr.storage.read_error.ReadError: /dev/null: is not a regular file; copy its content to one
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise kind(f"{path}: cannot be read ({_reason(error)})") from error
    if not stat.S_ISREG(found.st_mode):
        what = "a folder; name a file" if stat.S_ISDIR(found.st_mode) else "not a regular file; copy its content to one"
        raise kind(f"{path}: is {what}")
    return found.st_size


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it does not fit into memory"
    text = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
    plain = isinstance(error, OSError | ValueError | EOFError) and text
    return text[:300] if plain else f"{type(error).__name__}: {text[:300]}"
