"""Embeddings as files: COOT's HDF5 layout, which captioning reads, and npz with the same names.

| name | content |
|---|---|
| ``key`` | (videos,) bytes |
| ``clip_num``, ``sent_num`` | (videos,) clips and sentences of each video; rows are flat, in this order |
| ``clip_emb``, ``sent_emb`` | L2-normalised rows of modality A and B |
| ``vid_emb``, ``par_emb``, ``vid_context``, ``par_context`` | the same for whole videos (data of two levels) |
| ``<name>_before_norm`` | the raw rows |
| ``clip_of``, ``clip_key``, ``text``, ``group``, ``modality`` | optional additions that COOT's own files lack |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from crossclr.features import clip_keys
from crossclr.features.reading.hdf5 import data_set, open_hdf5
from crossclr.models.embeddings import Embeddings
from crossclr.storage import new_file, sweep
from crossclr.storage.read_error import reading

NAMES = {
    "clip_emb": "clip_a",
    "sent_emb": "clip_b",
    "vid_emb": "video_a",
    "par_emb": "video_b",
    "vid_context": "context_a",
    "par_context": "context_b",
}
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
    owner = torch.repeat_interleave(torch.arange(len(counts)), counts)[embeddings.clip_of]  # video of each sentence
    if len(owner) and bool((owner.diff() < 0).any()):
        raise ValueError("sentences must be in the order of their videos; sort the rows of clip_b by video first")
    arrays: dict[str, Array] = {
        "key": _bytes(embeddings.video_keys),
        "clip_num": counts.numpy(),
        "sent_num": torch.bincount(owner, minlength=len(counts)).numpy(),
        "clip_of": embeddings.clip_of.numpy(),
        "clip_key": _bytes(embeddings.clip_keys),
        "modality": _bytes(embeddings.modalities),
    }
    if embeddings.texts:
        arrays["text"] = _bytes(embeddings.texts)
    if embeddings.groups:
        arrays["group"] = _bytes(embeddings.groups)
    for name, attribute in NAMES.items():
        rows = getattr(embeddings, attribute)
        if rows is not None:
            arrays[name] = normalize(rows, dim=1).numpy()
            arrays[f"{name}_before_norm"] = rows.numpy()
    return arrays


def _embeddings(arrays: Mapping[str, Array], path: Path) -> Embeddings:
    for name in ("key", "clip_num", "clip_emb", "sent_emb"):
        if name not in arrays and f"{name}_before_norm" not in arrays:
            raise ValueError(f"{path} has no {name!r}; it holds {', '.join(sorted(arrays)) or 'nothing'}")
    counts = torch.as_tensor(arrays["clip_num"].astype(np.int64))
    keys = _strings(arrays["key"])
    rows: dict[str, Tensor] = {}
    for name, attribute in NAMES.items():
        array = arrays.get(f"{name}_before_norm", arrays.get(name))
        if array is not None:
            rows[attribute] = torch.as_tensor(np.asarray(array, dtype=np.float32))
    clips, sentences = len(rows["clip_a"]), len(rows["clip_b"])
    if len(keys) != len(counts) or int(counts.sum()) != clips:
        raise ValueError(
            f"{path} does not fit together: {len(keys)} keys, {len(counts)} counts that sum to {int(counts.sum())}, "
            f"{clips} clips"
        )
    if "clip_of" in arrays:
        clip_of = torch.as_tensor(arrays["clip_of"].astype(np.int64))
    elif clips == sentences:
        clip_of = torch.arange(clips)
    else:
        raise ValueError(
            f"{path} has {clips} clips and {sentences} sentences but no 'clip_of' that says which belong together"
        )
    if len(clip_of) != sentences or (sentences and not 0 <= int(clip_of.min()) <= int(clip_of.max()) < clips):
        raise ValueError(f"{path}: 'clip_of' must name one of {clips} clips for each of {sentences} sentences")
    if "clip_key" in arrays:
        names = _strings(arrays["clip_key"])
    else:
        names = tuple(name for key, count in zip(keys, counts.tolist(), strict=True) for name in clip_keys(key, count))
    first, second = _strings(arrays["modality"]) if "modality" in arrays else ("video", "text")  # COOT's
    return Embeddings(
        clip_of=clip_of,
        clip_keys=names,
        clip_counts=counts,
        video_keys=keys,
        texts=_strings(arrays["text"]) if "text" in arrays else (),
        groups=_strings(arrays["group"]) if "group" in arrays else (),
        modalities=(first, second),
        **rows,
    )


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
