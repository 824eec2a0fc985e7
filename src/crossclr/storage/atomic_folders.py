"""Write a folder so that readers see the old one or the complete new one, also after a crash.

A new folder gets a manifest (see `crossclr.storage.checksums`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crossclr.storage.atomic import sync
from crossclr.storage.checksums import seal
from crossclr.storage.disk_full import naming_full_disk
from crossclr.storage.leftovers import remove, sweep, temporary_path

PREVIOUS = ".previous"


@contextmanager
def new_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary folder to fill; it becomes ``path``, with a manifest, when the block ends without an error.

    Parents are created. Leftovers of dead processes next to it are removed first. Replacing a folder takes two renames:
    a reader calls `complete_folder` to find the complete folder at any moment, and the next writer calls
    `restore_folder` after a crash.
    """
    if path.exists() and not replace:
        raise FileExistsError(f"{path} already exists; choose another name")
    with naming_full_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        temporary = temporary_path(path)
        try:
            temporary.mkdir()
            yield temporary
            seal(temporary)
            for found in temporary.rglob("*"):
                sync(found)
            sync(temporary)
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
    sweep(path.parent)


def _rename_folder(temporary: Path, path: Path, replace: bool) -> None:
    if replace:
        restore_folder(path)
        if path.exists():
            path.rename(_previous(path))
    temporary.rename(path)
    sync(path.parent)
    if replace:
        remove(_previous(path))


def _previous(path: Path) -> Path:
    return path.with_name(path.name + PREVIOUS)
