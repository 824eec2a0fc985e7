"""Write a file or a folder so that readers see the old one or the complete new one, also after a crash.

Everything is written under a temporary name next to its target, synced to the disk, renamed, and the parent folder is
synced. An error removes the temporary file; a killed process leaves it behind, for `sweep` to remove.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crossclr.storage.disk_full import naming_full_disk
from crossclr.storage.leftovers import remove, sweep, temporary_path

PREVIOUS = ".previous"


def write_file(path: Path, content: bytes | str) -> None:
    """Write a whole file at once; text is encoded as UTF-8.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "notes.txt"
        >>> write_file(path, "first")
        >>> write_file(path, "second")
        >>> path.read_text(), len(list(path.parent.iterdir()))
        ('second', 1)
    """
    with new_file(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, content: Any) -> None:
    """Write a value as indented JSON."""
    write_file(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it becomes ``path`` when the block ends without an error.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "rows.bin"
        >>> with new_file(path) as temporary:
        ...     _ = temporary.write_bytes(b"rows")
        ...     path.exists()
        False
        >>> path.read_bytes()
        b'rows'
    """
    temporary = temporary_path(path)
    with naming_full_disk(path):
        try:
            yield temporary
            _sync(temporary)
            temporary.replace(path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary folder to fill; it becomes ``path`` when the block ends without an error.

    Parents are created. Leftovers of dead processes with the same target are removed first.

    Args:
        path: the folder to create.
        replace: replace a folder that exists. Two renames are needed for this; a reader calls `complete_folder` to
            find the complete folder at any moment, and the next writer calls `restore_folder` after a crash.

    Raises:
        FileExistsError: ``path`` exists and ``replace`` is False.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "run"
        >>> with new_folder(path) as folder:
        ...     _ = (folder / "config.yaml").write_text("name: run")
        >>> [file.name for file in path.iterdir()]
        ['config.yaml']
    """
    if path.exists() and not replace:
        raise FileExistsError(f"{path} already exists; choose another name")
    with naming_full_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, target=path.name)
        temporary = temporary_path(path)
        try:
            temporary.mkdir()
            yield temporary
            for found in temporary.rglob("*"):
                _sync(found)
            _sync(temporary)
            _rename_folder(temporary, path, replace)
        finally:
            remove(temporary)


def complete_folder(path: Path) -> Path:
    """The folder to read: ``path``, or its predecessor while (or after a crash in which) it is being replaced."""
    previous = _previous(path)
    return previous if not path.exists() and previous.exists() else path


def restore_folder(path: Path) -> None:
    """Put back the predecessor of a folder after a crash between two renames; only for its one writer."""
    complete = complete_folder(path)
    if complete != path:
        complete.rename(path)
    remove(_previous(path))
    sweep(path.parent, target=path.name)


def _rename_folder(temporary: Path, path: Path, replace: bool) -> None:
    if replace:
        restore_folder(path)
        if path.exists():
            path.rename(_previous(path))
    temporary.rename(path)
    _sync(path.parent)
    if replace:
        remove(_previous(path))


def _previous(path: Path) -> Path:
    return path.with_name(path.name + PREVIOUS)


def _sync(path: Path) -> None:
    """Wait until a file's bytes or a folder's names are on the disk; nothing where a folder cannot be opened."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # Windows cannot open folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
