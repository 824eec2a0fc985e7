"""Folders that are complete or not there: each change of an index is a new generation, and one file names the last."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from crossclr.storage import FolderLock, new_folder, write_file

POINTER = "CURRENT"
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
    root.mkdir(parents=True, exist_ok=True)
    with FolderLock(root):
        before = current_generation(root) if (root / POINTER).exists() else None
        number = 1 + max((int(path.name.split("-")[1]) for path in _generations(root)), default=0)
        folder = root / f"generation-{number:06d}"
        with new_folder(folder) as partial:
            yield partial
        write_file(root / POINTER, folder.name)
        for other in _generations(root):
            if other not in (folder, before):
                shutil.rmtree(other, ignore_errors=True)


def _generations(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if _NAME.fullmatch(path.name))
