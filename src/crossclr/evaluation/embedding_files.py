"""Embeddings as files: COOT's HDF5 layout, which captioning reads, and npz with the same names.

| name | content |
|---|---|
| ``key`` | (videos,) bytes |
| ``clip_num``, ``sent_num`` | (videos,) clips of each video, and sentences; rows are flat, in this order |
| ``clip_emb``, ``sent_emb`` | L2-normalised rows of the first and the second modality |
| ``vid_emb``, ``par_emb``, ``vid_context``, ``par_context`` | the same for whole videos (data of two levels) |
| ``NAME.clip_emb``, ``NAME.vid_emb``, ``NAME.vid_context`` | the same for every further modality NAME |
| ``<column>_before_norm`` | the raw rows |
| ``clip_of``, ``text``, ``video_of`` | clip, text and video of each row of the second modality |
| ``first_clip_of``, ``NAME.clip_of``, ... | the same for the first and for every further modality |
| ``clip_key``, ``group``, ``modality`` | keys of clips, labels of videos, names of the modalities |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from crossclr.data.entries import data_set, open_hdf5
from crossclr.data.sample import clip_keys
from crossclr.extras import OptionalModule
from crossclr.models.embeddings import Embeddings, Vectors
from crossclr.storage import new_file, sweep
from crossclr.storage.reading import reading

if TYPE_CHECKING:
    import h5py
else:
    h5py = OptionalModule("h5py", "train", "HDF5")

LEVELS = ("clip", "video", "context")
COOT = (("clip_emb", "vid_emb", "vid_context"), ("sent_emb", "par_emb", "par_context"))  # of the first two modalities
Array = npt.NDArray[Any]


def save_embeddings(embeddings: Embeddings, path: str | os.PathLike[str]) -> Path:
    """Write embeddings to an HDF5 (``.h5``, ``.hdf5``) or ``.npz`` file.

    The file appears under its name only when it is complete.

    Args:
        embeddings: what to write.
        path: the file; its ending selects the format.

    Returns:
        the path.
    """
    path = Path(path)
    hdf5 = is_hdf5(path)
    arrays = _arrays(embeddings)
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    with new_file(path) as temporary:
        if hdf5:
            with h5py.File(temporary, "w") as file:
                for name, array in arrays.items():
                    file.create_dataset(name, data=array)
        else:
            with temporary.open("wb") as stream:
                np.savez(stream, **arrays)  # type: ignore[arg-type]  # the stubs take the names for options
    return path


def load_embeddings(path: str | os.PathLike[str]) -> Embeddings:
    """Read a file that `save_embeddings` or COOT wrote.

    Raw rows are used if the file has them, otherwise the normalised ones.

    Args:
        path: an HDF5 or npz file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or lacks a part; the message names it.
    """
    path = Path(path)
    hdf5 = is_hdf5(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; write one with: crossclr embed RUN --out {path.name}")
    with reading(path, "embedding file"):
        if hdf5:
            with open_hdf5(path) as file:
                arrays = {name: np.asarray(data_set(path, file, name, largest=None)) for name in file}
        else:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        return _embeddings(arrays, path)


def _arrays(embeddings: Embeddings) -> dict[str, Array]:
    counts = embeddings.clip_counts
    arrays: dict[str, Array] = {
        "key": _bytes(embeddings.video_keys),
        "clip_num": counts.numpy(),
        "clip_key": _bytes(embeddings.clip_keys),
        "modality": _bytes(embeddings.names),
    }
    if embeddings.groups:
        arrays["group"] = _bytes(embeddings.groups)
    video_of_clip = torch.repeat_interleave(torch.arange(len(counts)), counts)
    for number, (name, vectors) in enumerate(embeddings.modalities.items()):
        prefix = _prefix(number, name)
        owner = video_of_clip[vectors.clip_of]
        if len(owner) and bool((owner.diff() < 0).any()):
            raise ValueError(f"the rows of {name} must be in the order of their videos; sort them first")
        arrays[f"{prefix}clip_of"] = vectors.clip_of.numpy()
        if number == 1:
            arrays["sent_num"] = torch.bincount(owner, minlength=len(counts)).numpy()
        if vectors.video_of is not None:
            arrays[f"{prefix}video_of"] = vectors.video_of.numpy()
        if vectors.texts:
            arrays[f"{prefix}text"] = _bytes(vectors.texts)
        for level, rows in zip(LEVELS, (vectors.rows, vectors.videos, vectors.context), strict=True):
            if rows is not None:
                arrays[_column(number, name, level)] = normalize(rows, dim=1).numpy()
                arrays[f"{_column(number, name, level)}_before_norm"] = rows.numpy()
    return arrays


def _embeddings(arrays: Mapping[str, Array], path: Path) -> Embeddings:
    for name in ("key", "clip_num", "clip_emb", "sent_emb"):
        if name not in arrays and f"{name}_before_norm" not in arrays:
            raise ValueError(f"{path} has no {name!r}; it holds {', '.join(sorted(arrays)) or 'nothing'}")
    counts = torch.as_tensor(arrays["clip_num"].astype(np.int64))
    keys = _strings(arrays["key"])
    if "clip_key" in arrays:
        names = _strings(arrays["clip_key"])
    else:
        names = tuple(name for key, count in zip(keys, counts.tolist(), strict=True) for name in clip_keys(key, count))
    if len(keys) != len(counts) or int(counts.sum()) != len(names):
        raise ValueError(
            f"{path} does not fit together: {len(keys)} keys, {len(counts)} counts that sum to {int(counts.sum())}, "
            f"{len(names)} clips"
        )
    modalities = _strings(arrays["modality"]) if "modality" in arrays else ("video", "text")  # COOT's
    return Embeddings(
        {name: _vectors(arrays, path, number, name, (len(names), len(keys))) for number, name in enumerate(modalities)},
        clip_keys=names,
        clip_counts=counts,
        video_keys=keys,
        groups=_strings(arrays["group"]) if "group" in arrays else (),
    )


def _vectors(arrays: Mapping[str, Array], path: Path, number: int, name: str, sizes: tuple[int, int]) -> Vectors:
    """One modality of a file; ``sizes`` are the numbers of clips and videos."""
    prefix, (clips, videos) = _prefix(number, name), sizes
    rows: dict[str, Tensor] = {}
    for level in LEVELS:
        column = _column(number, name, level)
        array = arrays.get(f"{column}_before_norm", arrays.get(column))
        if array is not None:
            rows[level] = torch.as_tensor(np.asarray(array, dtype=np.float32))
    if "clip" not in rows:
        raise ValueError(f"{path} has no {_column(number, name, 'clip')!r}; it may be truncated")
    clip_of = _places(arrays, f"{prefix}clip_of", len(rows["clip"]), clips, path)
    video_of = _places(arrays, f"{prefix}video_of", len(rows["video"]), videos, path) if "video" in rows else None
    return Vectors(
        rows["clip"],
        clip_of,
        _strings(arrays[f"{prefix}text"]) if f"{prefix}text" in arrays else (),
        rows.get("video"),
        video_of,
        rows.get("context"),
    )


def _places(arrays: Mapping[str, Array], column: str, rows: int, count: int, path: Path) -> Tensor:
    """The clip or video of each row; row by row if the file does not say."""
    if column not in arrays:
        if rows != count:
            raise ValueError(f"{path} has {rows} rows for {count} clips or videos but no {column!r} that assigns them")
        return torch.arange(rows)
    found = torch.as_tensor(arrays[column].astype(np.int64))
    if len(found) != rows or (rows and not 0 <= int(found.min()) <= int(found.max()) < count):
        raise ValueError(f"{path}: {column!r} must name one of {count} clips or videos for each of {rows} rows")
    return found


def _prefix(number: int, name: str) -> str:
    """What the columns of a modality begin with: nothing for the second, which has COOT's names and texts."""
    return "" if number == 1 else f"{name}." if number > 1 else "first_"


def _column(number: int, name: str, level: str) -> str:
    """The rows of a modality: COOT's names for the first two, ``NAME.clip_emb`` and so on for the others."""
    return COOT[number][LEVELS.index(level)] if number < 2 else f"{name}.{COOT[0][LEVELS.index(level)]}"


def is_hdf5(path: Path) -> bool:
    """Whether a file name means HDF5 (else npz); any other ending is a ValueError."""
    if path.suffix in (".h5", ".hdf5"):
        return True
    if path.suffix == ".npz":
        return False
    raise ValueError(f"{path}: the ending decides the format; use .h5 (COOT's layout) or .npz")


def _bytes(strings: tuple[str, ...]) -> Array:
    return np.array([string.encode() for string in strings], dtype=np.bytes_)


def _strings(array: Array) -> tuple[str, ...]:
    return tuple(item.decode() if isinstance(item, bytes) else str(item) for item in array.tolist())
