"""Several sentences for the whole of a recording: the same rows as plain arrays, which know such pairs.

COOT's layout has one sentence for each clip. Where recordings have many captions and no times, a clip that stands there
once for each caption would be its own false negative, so the rows are also written end to end, with the owner of each
sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from crossclr.experts.extraction.training_set import DataSet
from crossclr.storage import new_file, write_json

FOLDER = "arrays"


def write_arrays(out: Path, data: DataSet) -> dict[str, Any]:
    """Write the rows of a data set as arrays, and give the section ``data`` of a config for them.

    Args:
        out: the folder that has the HDF5 files.
        data: which datapoints and experts.
    """
    (out / FOLDER).mkdir(exist_ok=True)
    keys = list(data.meta)
    a, b = [], []
    for expert in data.a:
        with h5py.File(out / f"{expert}.h5", "r", locking=False) as file:
            own = [key for key in keys if data.meta[key]["data_key"] in file]
            _write_rows(out, expert, file, [data.meta[key]["data_key"] for key in own])
        write_json(out / FOLDER / f"{expert}_ids.json", own)
        a.append(_places(expert))
    owners = [key for key in keys for _ in data.meta[key]["segments"]]
    for expert in data.b:
        with h5py.File(out / f"{expert}.h5", "r", locking=False) as file:
            _write_rows(out, expert, file, keys, sentences=True)
        write_json(out / FOLDER / f"{expert}_ids.json", owners)
        b.append(_places(expert))
    texts = [segment["text"] for key in keys for segment in data.meta[key]["segments"]]
    write_json(out / FOLDER / "texts.json", texts)
    return {
        "kind": "arrays",
        "root": str(out.resolve()),
        "a": a,
        "b": b,
        "splits": "meta_all.json#split",
        "texts": f"{FOLDER}/texts.json",
    }


def _places(expert: str) -> dict[str, str]:
    return {
        "values": f"{FOLDER}/{expert}_rows.npy",
        "lengths": f"{FOLDER}/{expert}_lengths.npy",
        "ids": f"{FOLDER}/{expert}_ids.json",
    }


def _write_rows(out: Path, expert: str, file: h5py.File, names: Sequence[str], sentences: bool = False) -> None:
    """The rows of these entries end to end, and the length of each entry or of each of its sentences."""
    lengths = [
        int(length)
        for name in names
        for length in (file[name].attrs["sentence_tokens"] if sentences else [len(file[name])])
    ]
    first = file[names[0]]
    with new_file(out / FOLDER / f"{expert}_rows.npy") as temporary:
        rows = np.lib.format.open_memmap(temporary, mode="w+", dtype=first.dtype, shape=(sum(lengths), first.shape[1]))
        place = 0
        for name in names:
            rows[place : place + len(file[name])] = file[name][()]
            place += len(file[name])
        rows.flush()
    np.save(out / FOLDER / f"{expert}_lengths.npy", np.array(lengths, dtype=np.int64))
