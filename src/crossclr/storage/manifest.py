"""The manifest of a folder: size and checksum of each of its files, so that damage and edits are noticed.

``checksums.json`` lists the files that were written with it. Opening a folder compares small files by checksum and
large ones by size; `verify` compares everything. Files that are not listed (metrics that grow, locks) are not compared,
and a folder inside has a manifest of its own.

Write a folder so that readers see the old one or the complete new one, also after a crash.

A new folder gets a manifest (see `crossclr.storage.manifest`).
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from crossclr.errors import ReadError
from crossclr.storage.files import naming_full_disk, new_file, remove, sweep, sync, temporary_path
from crossclr.storage.reading import check_regular, read_json_object, reading

NAME = "checksums.json"
SMALL = 16 << 20  # bytes that are compared at every opening, in about 20 ms


def seal(folder: Path, names: Iterable[str] | None = None) -> None:
    """Write the manifest of a folder: of all its files, or add and renew only those that are named."""
    listed: dict[str, list[int | str]] = {}
    if names is not None and (folder / NAME).exists():
        listed = _listed(folder)
    if names is None:
        names = _own_files(folder)
    for name in sorted(set(names) - {NAME}):
        if (folder / name).is_file():
            listed[name] = [(folder / name).stat().st_size, _digest(folder / name)]
        else:
            listed.pop(name, None)
    _write(folder, listed)


def unlist(folder: Path, names: Iterable[str]) -> None:
    """Remove files from the manifest of a folder, before they are written again."""
    listed = _listed(folder)
    if known := listed.keys() & set(names):
        _write(folder, {name: entry for name, entry in listed.items() if name not in known})


def renew(folder: Path) -> None:
    """Write the checksums of the listed files again; the list itself stays, without files that are missing."""
    seal(folder, _listed(folder))


def changes(folder: Path, everything: bool = False) -> list[str]:
    """What differs from the manifest, in words; large files are compared by size unless ``everything`` is set."""
    found = []
    for name, entry in _listed(folder).items():
        with reading(folder / NAME, "manifest", entry=name):
            size, digest = entry
            path = folder / name
            if not path.is_file():
                found.append(f"{name} is missing")
            elif path.stat().st_size != size or ((everything or size <= SMALL) and _digest(path) != digest):
                found.append(f"{name} was changed")
    return found


def file_digest(path: Path) -> str:
    """The checksum of a file; that of a large one comes from the manifest of its folder, if the size agrees."""
    size = check_regular(path)
    if size > SMALL and (path.parent / NAME).is_file():
        match _listed(path.parent).get(path.name):
            case [int(listed), str(digest)] if listed == size:
                return digest
    return _digest(path)


def check_sealed(folder: Path, advice: str = "restore it from a copy", kind: type[ReadError] = ReadError) -> None:
    """Compare a folder with its manifest, large files by their size only."""
    if not (folder / NAME).is_file():
        raise kind(f"{folder}: {NAME} is missing; {advice}, or take it as it is: crossclr check {folder} --accept")
    if differing := changes(folder):
        raise kind(
            f"{folder}: {'; '.join(differing)} since this folder was written; {advice}. If you made the change on "
            f"purpose, run: crossclr check {folder} --accept"
        )


def sealed_folders(root: Path) -> list[Path]:
    """A folder and all folders inside that have a manifest."""
    return sorted(path.parent for path in root.rglob(NAME) if not any(part.endswith(".partial") for part in path.parts))


def _own_files(folder: Path) -> Iterator[str]:
    """All files below a folder, by relative path, except hidden ones and those of folders with their own manifest."""
    for path in folder.iterdir():
        if path.is_dir() and not (path / NAME).exists():
            yield from (f"{path.name}/{inner}" for inner in _own_files(path))
        elif path.is_file() and not path.name.startswith("."):
            yield path.name


def _write(folder: Path, listed: Mapping[str, list[int | str]]) -> None:
    with new_file(folder / NAME) as temporary:
        temporary.write_text(json.dumps(listed, indent=1))


def _listed(folder: Path) -> dict[str, list[int | str]]:
    return read_json_object(folder / NAME)


def _digest(path: Path) -> str:
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


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
