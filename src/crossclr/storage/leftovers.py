"""Temporary names that carry their owner, so that the leftovers of dead processes can be removed safely."""

import itertools
import re
import shutil
from pathlib import Path

from crossclr.storage.owner import Owner

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
