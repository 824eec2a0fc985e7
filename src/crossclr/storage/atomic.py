"""Write a file so that readers see the old one or the complete new one, also after a crash.

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
from crossclr.storage.leftovers import temporary_path


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
