"""One way in: every failure while reading a file becomes one line with the file, the entry and the next step.

Read JSON without losing a key: repeated keys, deep nesting and oversized files are errors.
"""

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crossclr.errors import ReadError
from crossclr.extras import MissingExtraError
from crossclr.storage.files import DiskFullError


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

    The message names the file, its format, the entry that is read, and the advice: what the user can do. Keep the block
    short: it holds the call of the library and what takes its result apart. A mistake in this package, such as an
    unknown name or attribute, stays what it is.
    """
    try:
        yield
    except (ReadError, DiskFullError, MissingExtraError):
        raise
    except Exception as error:  # libraries raise many kinds of error for a damaged file
        if isinstance(error, _MISTAKES) and _raised_here(error):
            raise
        what = "" if entry is None else f"entry {entry!r} "
        raise kind(f"{path}: {what}cannot be read as {form} ({_reason(error)}); {advice}") from error


_MISTAKES = (NameError, AttributeError, AssertionError, ZeroDivisionError)


def _raised_here(error: Exception) -> bool:
    """Whether code of this package raised an error, and not a library that it calls."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "crossclr"


def check_regular(path: Path, kind: type[ReadError] = ReadError) -> int:
    """The size of a file in bytes.

    Example:
        >>> check_regular(Path("/dev/null"))
        Traceback (most recent call last):
        ...
        crossclr.errors.ReadError: /dev/null: is not a regular file; copy its content to one
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


DEEPEST = 64  # levels; our own files have at most ten
LARGEST = 4 << 30  # bytes

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]')


def read_json(path: Path, kind: type[ReadError] = ReadError) -> Any:
    """The content of a JSON file."""
    return parse_json(read_bounded(path, "JSON", LARGEST, kind), path, kind)


def read_json_object(path: Path, *fields: str, kind: type[ReadError] = ReadError) -> dict[str, Any]:
    """The content of a JSON file that holds an object with these fields."""
    found = read_json(path, kind)
    if not isinstance(found, dict):
        raise kind(f"{path}: must hold an object, found {type(found).__name__}; restore the file")
    for field in fields:
        if field not in found:
            raise kind(f"{path}: has no field {field!r}; restore the file")
    return found


def parse_json(text: str | bytes, origin: Path | str, kind: type[ReadError] = ReadError) -> Any:
    """The value of a JSON text; ``origin`` is its name in messages."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            line, key = _repeated_key(text if isinstance(text, str) else text.decode())
            raise kind(f"{origin}: line {line}: key {key!r} occurs twice in one object; remove one of them")
        return found

    with reading(origin, "JSON", advice="correct it", kind=kind):
        value = json.loads(text, object_pairs_hook=unique)
    check_nesting(value, origin, kind=kind)
    return value


def read_bounded(path: Path, form: str, largest: int, kind: type[ReadError] = ReadError) -> str:
    """The text of a file of at most so many bytes."""
    size = check_regular(path, kind)
    if size > largest:
        raise kind(f"{path}: has {size:,} bytes; a {form} file may have at most {largest:,}")
    with reading(path, form, kind=kind):
        return path.read_text(encoding="utf-8-sig")


def check_nesting(value: Any, origin: Path | str, most: int | None = None, kind: type[ReadError] = ReadError) -> None:
    """Refuse values that are nested too deeply; with ``most`` also too many, numbers beyond 64 bits and NUL."""
    level, depth, count = [value], 0, 0
    fault = ""
    while level and not fault:
        depth, count = depth + 1, count + len(level)
        if depth > DEEPEST:
            fault = f"it is nested more than {DEEPEST} levels deep"
        elif most is not None and count > most:
            fault = f"it has more than {most:,} values"
        elif most is not None and any(isinstance(inner, int) and inner.bit_length() > 64 for inner in level):
            fault = "it has a whole number of more than 64 bits"
        elif most is not None and any(isinstance(inner, str) and "\0" in inner for inner in level):
            fault = "it has a text with a NUL character"
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _inner(outer)]
    if fault:
        raise kind(f"{origin}: {fault}; correct it")


def _inner(value: dict[Any, Any] | list[Any]) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, dict) else value)


def _repeated_key(text: str) -> tuple[int, str]:
    """Line and name of the first key that occurs twice in its object, in a text that is valid JSON."""
    keys: list[set[str] | None] = []  # of each open object; None for a list
    key_comes = False
    for token in _TOKEN.finditer(text):
        found = token.group()
        if found in "{[":
            keys.append(set() if found == "{" else None)
            key_comes = found == "{"
        elif found in "}]":
            keys.pop()
        elif found == ",":
            key_comes = keys[-1] is not None
        elif key_comes:
            here, name, key_comes = keys[-1] or set(), json.loads(found), False
            if name in here:
                return text.count("\n", 0, token.start()) + 1, name
            here.add(name)
            keys[-1] = here
    return 0, "?"
