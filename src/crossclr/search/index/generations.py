"""Folders that are complete or not there: each change of an index is a new generation, and one file names the last."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

POINTER, LOCK = "CURRENT", ".lock"
_NAME = re.compile(r"generation-\d{6,}")


def current_generation(root: Path) -> Path | None:
    """The folder of the last complete generation, or None where there is none yet.

    Raises:
        ValueError: the pointer names something else.
    """
    try:
        name = (root / POINTER).read_text().strip()
    except FileNotFoundError:
        return None
    if not _NAME.fullmatch(name) or not (root / name).is_dir():
        raise ValueError(f"{root / POINTER} names {name!r}, which is not there; build the index again")
    return root / name


@contextlib.contextmanager
def new_generation(root: Path) -> Iterator[Path]:
    """A folder to fill; when the block ends without an error it becomes the current generation.

    A process that dies in between leaves a folder that nothing points to; the next change removes it. The generation
    before the current one is kept, for readers that are about to open it.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> with new_generation(root) as folder:
        ...     _ = (folder / "data").write_text("1")
        >>> current_generation(root).name
        'generation-000001'
    """
    from crossclr.training.checkpoint import write_atomically  # late: who only reads an index needs no PyTorch

    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / LOCK):
        before = current_generation(root) if (root / POINTER).exists() else None
        number = 1 + max((int(path.name.split("-")[1]) for path in _generations(root)), default=0)
        folder = root / f"generation-{number:06d}"
        folder.mkdir()
        try:
            yield folder
            _sync_all(folder)
            write_atomically(root / POINTER, folder.name.encode())
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        for other in _generations(root):
            if other not in (folder, before):
                shutil.rmtree(other, ignore_errors=True)


def _generations(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if _NAME.fullmatch(path.name))


def _sync_all(folder: Path) -> None:
    from crossclr.training.checkpoint import sync_folder

    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time; the system lets go of the lock when its process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: then the user must not run two builds at once
        yield
        return
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is changing the index in {path.parent}; wait until it is done") from None
        yield
