"""Write recordings with several captions and no times as plain arrays.

COOT's layout has one sentence for each clip. A clip that appeared once for each of its captions would be its own false
negative, so the rows are also written end to end, with the owner of each sentence.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from crossclr.experts.extraction.training_set import DataSet
from crossclr.storage import new_file, write_json

FOLDER = "arrays"


def write_arrays(out: Path, data: DataSet) -> dict[str, Any]:
    """Write the rows of a data set as arrays and return the section ``data`` of a config for them.

    Args:
        out: the folder with the HDF5 files.
        data: which datapoints and experts.
    """
    (out / FOLDER).mkdir(exist_ok=True)
    keys = list(data.meta)
    owners = [key for key in keys for _ in data.meta[key]["segments"]]
    texts = [segment["text"] for key in keys for segment in data.meta[key]["segments"]]
    write_json(out / FOLDER / "texts.json", texts)
    recording = {key: data.meta[key]["data_key"] for key in keys}
    modalities: dict[str, list[dict[str, Any]]] = {name: [] for name in data.modalities.experts}
    for name, experts in data.modalities.experts.items():
        reads = name == data.modalities.text
        for expert in experts:
            with h5py.File(out / f"{expert}.h5", "r", locking=False) as file:
                own = [key for key in keys if reads or recording[key] in file]
                _write_rows(out, expert, [file[key if reads else recording[key]] for key in own], by_sentence=reads)
            write_json(out / FOLDER / f"{expert}_ids.json", owners if reads else own)
            parts = {"values": "rows.npy", "lengths": "lengths.npy", "ids": "ids.json"}
            modalities[name].append({field: f"{FOLDER}/{expert}_{part}" for field, part in parts.items()})
        if reads:
            modalities[name][0] |= {"texts": f"{FOLDER}/texts.json", "max_frames": None}
    return {"kind": "arrays", "root": str(out.resolve()), "modalities": modalities, "splits": "meta_all.json#split"}


def _write_rows(out: Path, expert: str, entries: Sequence[h5py.Dataset], by_sentence: bool) -> None:
    """The rows of all entries end to end, and the length of each entry or of each of its sentences."""
    lengths = [
        int(length) for entry in entries for length in (entry.attrs["sentence_tokens"] if by_sentence else [len(entry)])
    ]
    shape = (sum(lengths), entries[0].shape[1])
    with new_file(out / FOLDER / f"{expert}_rows.npy") as temporary:
        rows = np.lib.format.open_memmap(temporary, mode="w+", dtype=entries[0].dtype, shape=shape)
        place = 0
        for entry in entries:
            rows[place : place + len(entry)] = entry[()]
            place += len(entry)
        rows.flush()
    with new_file(out / FOLDER / f"{expert}_lengths.npy") as temporary, temporary.open("wb") as file:
        np.save(file, np.array(lengths, dtype=np.int64))
