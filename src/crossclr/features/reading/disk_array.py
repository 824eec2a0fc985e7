"""Arrays that stay on disk: any range of leading rows is read on demand.

Plain reads at an offset replace a memory map: the process stays small however much of the file it has visited, threads
and forked processes can share the file, and a truncated file causes an error instead of a crash.
"""

import os
import shutil
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from crossclr.features.errors import DataError
from crossclr.storage import naming_full_disk
from crossclr.storage.reading import check_regular, reading

Array = npt.NDArray[Any]
Member = str | Callable[[list[str]], str] | None
MOST_CHECKED = 1 << 30  # bytes whose checksum is checked at opening, in about a second
LARGE, MOST_PACKED = 256 << 20, 100  # bytes, and bytes per packed byte; features pack to a tenth at best


class DiskArray:
    """An array in C order somewhere in a file, which is closed with this object."""

    def __init__(self, path: Path, file: IO[bytes], offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype
        self._file, self._offset, self._lock = file, offset, threading.Lock()
        self._row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
        weakref.finalize(self, file.close)
        needed = offset + len(self) * self._row_bytes
        found = os.fstat(file.fileno()).st_size
        if found < needed:
            raise DataError(f"{path}: the file ends at byte {found} but its header says {needed}; copy it again")

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def read(self, start: int, stop: int) -> Array:
        """Rows ``start`` to ``stop`` of the leading axis, as a fresh array."""
        out = np.empty((stop - start, *self.shape[1:]), dtype=self.dtype)
        view = out.reshape(-1).view(np.uint8).data if out.size else memoryview(b"")
        done, position = 0, self._offset + start * self._row_bytes
        while done < len(view):
            got = self._read_into(view[done:], position + done)
            if got == 0:
                raise DataError(f"{self.path}: the file ended while reading rows {start} to {stop}; copy it again")
            done += got
        return out

    def _read_into(self, view: memoryview, position: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [view], position)
        with self._lock:  # without reads at an offset: one thread at a time
            self._file.seek(position)
            return int(self._file.readinto(view))  # type: ignore[attr-defined]

    def __getitem__(self, index: int | slice) -> Array:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self.read(start, max(stop, start))[::step]
        row: Array = self.read(index, index + 1)[0]
        return row


def _read_header(path: Path, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise DataError(
            f"{path}: the array holds Python objects, which are never unpickled; save plain numbers or text"
        )
    return shape, fortran, dtype, file.tell()


def _from_npy(path: Path, file: IO[bytes], start: int = 0) -> DiskArray | Array:
    file.seek(start)
    shape, fortran, dtype, offset = _read_header(path, file)
    if fortran and len(shape) > 1:  # rows are not contiguous, so only a memory map can read them
        mapped: Array = np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape, order="F")
        return mapped
    return DiskArray(path, file, offset, shape, dtype)


def open_npy(path: Path) -> DiskArray | Array:
    """The array of a ``.npy`` file, left on disk."""
    check_regular(path, DataError)
    with reading(path, ".npy", kind=DataError):
        return _from_npy(path, path.open("rb"))


def open_npz(path: Path, member: Member = None) -> DiskArray | Array:
    """One array of a ``.npz`` file, left on disk; ``member`` names or chooses it, and is None for the only one.

    A stored member (``numpy.savez``) is read in place. A compressed one (``numpy.savez_compressed``) is unpacked once,
    piece by piece, into an unnamed temporary file.
    """
    check_regular(path, DataError)
    with reading(path, ".npz", kind=DataError), zipfile.ZipFile(path) as archive:
        info = archive.getinfo(f"{_choose(path, archive, member)}.npy")
        if info.compress_type == zipfile.ZIP_STORED:
            with archive.open(info) as stored:  # its end checks its checksum
                while info.file_size <= MOST_CHECKED and stored.read(1 << 22):
                    pass
            file = path.open("rb")
            file.seek(info.header_offset)
            local = file.read(30)  # its name and extra field have other lengths than in the index
            skip = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
            return _from_npy(path, file, info.header_offset + 30 + skip)
        if info.file_size > LARGE and info.file_size > MOST_PACKED * info.compress_size:
            raise DataError(
                f"{path}: {info.filename} unpacks {info.compress_size:,} to {info.file_size:,} bytes, which real "
                "features do not; if they are real, save them with numpy.savez"
            )
        place = Path(tempfile.gettempdir())
        with naming_full_disk(place, f"to unpack {path}; free some space or set TMPDIR"), archive.open(info) as packed:
            unpacked = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the array
            shutil.copyfileobj(packed, unpacked, 1 << 20)
            unpacked.flush()
        return _from_npy(path, unpacked)


def _choose(path: Path, archive: zipfile.ZipFile, member: Member) -> str:
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    if callable(member) and names:
        member = member(names)
    if member is None or callable(member):
        if len(names) != 1:
            raise DataError(f"{path}: has arrays {', '.join(names)}; name one of them as {path.name}#name")
        return names[0]
    if member not in names:
        raise DataError(f"{path}: has no array {member!r}; it has {', '.join(names)}")
    return member
