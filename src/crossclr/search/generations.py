"""Generations of an index: every change writes a new complete folder, and one file names the current one."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from crossclr.storage import FolderLock, new_folder, write_file

POINTER = "CURRENT"
_NAME = re.compile(r"generation-\d{6,}")


def current_generation(root: Path) -> Path | None:
    """The folder of the last complete generation, or None if there is none yet.

    Raises:
        ValueError: the pointer names a folder that does not exist.
    """
    try:
        name = (root / POINTER).read_text().strip()
    except FileNotFoundError:
        return None
    if not _NAME.fullmatch(name) or not (root / name).is_dir():
        raise ValueError(f"{root / POINTER} names {name!r}, which does not exist; delete {root} and rebuild the index")
    return root / name


@contextlib.contextmanager
def new_generation(root: Path) -> Iterator[Path]:
    """A folder to fill; it becomes the current generation when the block ends without an error.

    Only one process can change an index at a time. The previous generation is kept for readers that are about to open
    it; older ones, and what a killed process left behind, are removed.

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
        before = current_generation(root)
        number = 1 + max((int(path.name.split("-")[1]) for path in _generations(root)), default=0)
        folder = root / f"generation-{number:06d}"
        with new_folder(folder) as temporary:
            yield temporary
        write_file(root / POINTER, folder.name)
        for other in _generations(root):
            if other not in (folder, before):
                shutil.rmtree(other, ignore_errors=True)


def _generations(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if _NAME.fullmatch(path.name))
