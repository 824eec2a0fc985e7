"""Write clips with several sentences, or none, as plain arrays.

COOT's layout has one sentence for each clip. A clip that appeared once for each of its captions would be its own false
negative, so the rows are also written end to end, with the owner of each sentence.

Rows that are finished: parts of this extraction, and feature files of an earlier one.

Each recording (or paragraph) and expert has its own file, a part, until all parts are joined into ``<expert>.h5``.
Files appear when they are complete. Rows carry a fingerprint of everything they depend on, so a changed recording or
another model makes new rows.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from crossclr.data.sequences import clip_bounds
from crossclr.extract.contract import Expert, ExpertError, FloatRows, Needs
from crossclr.extract.training_set import FeatureSet
from crossclr.extras import OptionalModule
from crossclr.storage import new_file, write_json

if TYPE_CHECKING:
    import h5py
else:
    h5py = OptionalModule("h5py", "experts", "HDF5")

ARRAYS_FOLDER = "arrays"


def write_arrays(out: Path, data: FeatureSet) -> dict[str, Any]:
    """Write the rows of a data set as arrays and return the section ``data`` of a config for them.

    Args:
        out: the folder with the HDF5 files.
        data: which datapoints and experts.
    """
    folder = out / ARRAYS_FOLDER
    folder.mkdir(exist_ok=True)
    clips = [(key, clip) for key in data.meta for clip in data.clips_of(key)]
    read = {name: _sentences if name == data.modalities.text else _cut for name in data.modalities.experts}
    modalities: dict[str, list[dict[str, Any]]] = {name: [] for name in data.modalities.experts}
    for name, experts in data.modalities.experts.items():
        for expert in experts:
            with h5py.File(out / f"{expert}.h5", "r", locking=False) as file:
                like = np.zeros((0, int(file.attrs["dim"])), data.stored)
                ids = _write_rows(folder, expert, like, partial(read[name], file, data))
            write_json(folder / f"{expert}_ids.json", ids)
            parts = {"values": "rows.npy", "lengths": "lengths.npy", "ids": "ids.json"}
            modalities[name].append({field: f"{ARRAYS_FOLDER}/{expert}_{ending}" for field, ending in parts.items()})
        if name == data.modalities.text:
            write_json(
                folder / "texts.json",
                [data.meta[key]["segments"][number]["text"] for key, clip in clips for number in clip.sentences],
            )
            modalities[name][0] |= {"texts": f"{ARRAYS_FOLDER}/texts.json", "max_frames": None}
    write_json(folder / "splits.json", {clip.key: data.meta[key]["split"] for key, clip in clips})
    write_json(folder / "groups.json", {clip.key: data.meta[key]["data_key"] for key, clip in clips})
    places = {option: f"{ARRAYS_FOLDER}/{option}.json" for option in ("splits", "groups")}
    return {"kind": "arrays", "root": str(out.resolve()), "modalities": modalities, **places, "unpaired": "keep"}


Owned = Iterator[tuple[str, FloatRows]]  # a clip's key and rows


def _sentences(file: h5py.File, data: FeatureSet) -> Owned:
    """The rows of each sentence."""
    for key in (key for key in data.meta if key in file):
        rows, stops = file[key][()], np.cumsum(file[key].attrs["sentence_tokens"])
        parts = np.split(rows, stops[:-1])
        yield from ((clip.key, parts[number]) for clip in data.clips_of(key) for number in clip.sentences)


def _cut(file: h5py.File, data: FeatureSet) -> Owned:
    """The rows of each clip of the recordings that an expert has rows of."""
    for key, entry in data.meta.items():
        if entry["data_key"] in file:
            rows, clips = file[entry["data_key"]][()], data.clips_of(key)
            starts, stops = np.array([[clip.start, clip.stop] for clip in clips]).T
            bounds = clip_bounds(len(rows), entry["duration_sec"], starts, stops, 0, 1)
            yield from (
                (clip.key, rows[first:last]) for clip, (first, last) in zip(clips, bounds.tolist(), strict=True)
            )


def _write_rows(folder: Path, expert: str, like: FloatRows, sequences: Callable[[], Owned]) -> list[str]:
    """Write rows end to end, in the type of ``like`` (0, dim), and the length of each sequence; returns the keys."""
    owners = [(key, len(rows)) for key, rows in sequences()]
    lengths = np.array([length for _, length in owners], dtype=np.int64)
    with new_file(folder / f"{expert}_rows.npy") as temporary:
        if not len(lengths):
            with temporary.open("wb") as file:
                np.save(file, like)
        else:
            shape = (int(lengths.sum()), like.shape[1])
            values = np.lib.format.open_memmap(temporary, mode="w+", dtype=like.dtype, shape=shape)
            start = 0
            for _, rows in sequences():
                values[start : start + len(rows)] = rows
                start += len(rows)
            values.flush()
    with new_file(folder / f"{expert}_lengths.npy") as temporary, temporary.open("wb") as file:
        np.save(file, lengths)
    return [key for key, _ in owners]


PARTS_FOLDER = ".parts"
Description = dict[str, Any]


@dataclass(frozen=True)
class Joined:
    """The feature file of an expert."""

    rows: int  # the number of rows in it
    sentence_tokens: dict[str, list[int]]  # for each key the tokens of each sentence; empty lists for recordings


class FinishedRows:
    """The finished rows in an output folder."""

    def __init__(self, out: Path, stored: str) -> None:
        self.out, self.stored, self.folder = out, stored, out / PARTS_FOLDER
        self._wanted: dict[str, dict[str, str]] = {}  # expert -> key -> fingerprint
        self._earlier: dict[str, dict[str, Description]] = {}  # expert -> key -> description
        self._without: dict[str, dict[str, str]] = {}  # key -> expert -> fingerprint of an input without such rows

    def expect(self, expert: Expert, made_from: Mapping[str, Any]) -> None:
        """Declare the input of each key (size and time of a file, or sentences); other rows count as absent."""
        common = [asdict(expert.origin()), asdict(expert.needs), self.stored]
        self._wanted[expert.name] = {key: _digest([*common, source]) for key, source in made_from.items()}
        self._earlier[expert.name] = _describe_file(self.out / f"{expert.name}.h5")

    def find(self, expert: str, key: str) -> Description | None:
        """The description of finished rows; None if there are none or they are outdated."""
        fingerprint = self._wanted[expert].get(key)
        for description in (self._part(expert, key), self._earlier[expert].get(key)):
            if description is not None and fingerprint is not None and description.get("fingerprint") == fingerprint:
                return description
        return None

    def recall_absences(self, recordings: Mapping[str, Any]) -> None:
        """Take over what an earlier manifest says about recordings without input for an expert."""
        if not isinstance(recordings, dict) or not all(isinstance(about, dict) for about in recordings.values()):
            raise ValueError("recordings must be an object of objects")
        self._without = {key: dict(about.get("without", {})) for key, about in recordings.items()}

    def mark_absent(self, expert: str, key: str) -> None:
        """Note that a recording has no input for an expert, so that it is not decoded for it again."""
        self._without.setdefault(key, {})[expert] = self._wanted[expert][key]

    def absences(self, key: str) -> dict[str, str]:
        """The experts that a recording has no input for, with the fingerprint of that input."""
        known = self._without.get(key, {})
        return {name: mark for name, mark in known.items() if self._wanted.get(name, {}).get(key) == mark}

    def add(self, expert: Expert, key: str, rows: FloatRows, **about: Any) -> None:
        """Store the rows of a recording or paragraph, with what is known about them, as JSON values."""
        if not np.isfinite(rows).all():
            raise ExpertError(f"expert {expert.name!r} returned NaN or infinite values for {key!r}")
        if self.stored == "float16" and np.abs(rows).max(initial=0) > np.finfo(np.float16).max:
            raise ExpertError(f"rows of expert {expert.name!r} do not fit into float16; use --dtype float32")
        description = {**asdict(expert.origin()), "fingerprint": self._wanted[expert.name][key], **about, "key": key}
        path = self._part_path(expert.name, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded = np.frombuffer(json.dumps(description).encode(), dtype=np.uint8)
        with new_file(path) as temporary, temporary.open("wb") as file:
            np.savez(file, rows=rows.astype(self.stored), about=encoded)

    def rows(self, expert: str, key: str) -> FloatRows:
        """(rows, dim) the finished rows that ``find`` describes."""
        description = self._part(expert, key)
        if description is not None and description["fingerprint"] == self._wanted[expert][key]:
            with np.load(self._part_path(expert, key), allow_pickle=False) as stored:
                return np.asarray(stored["rows"], np.float32)
        with h5py.File(self.out / f"{expert}.h5", "r", locking=False) as file:
            return np.asarray(file[key], np.float32)

    def join(self, expert: Expert, keys: Sequence[str]) -> Joined:
        """Write ``<expert>.h5`` from the parts and from the feature file of an earlier extraction."""
        name, path = expert.name, self.out / f"{expert.name}.h5"
        parts = {key: self._part(name, key) for key in keys}
        fresh = {
            key: entry for key, entry in parts.items() if entry and entry["fingerprint"] == self._wanted[name][key]
        }
        if fresh or set(keys) != set(self._earlier[name]) or not path.is_file():
            with ExitStack() as stack:
                temporary = stack.enter_context(new_file(path))
                file = stack.enter_context(h5py.File(temporary, "w", libver=("v108", "v110")))
                earlier: Any = {}
                if self._earlier[name]:
                    earlier = stack.enter_context(h5py.File(path, "r", locking=False))
                file.attrs.update({**asdict(expert.origin()), "needs": expert.needs.kind})
                for key in keys:
                    if key in fresh:
                        with np.load(self._part_path(name, key), allow_pickle=False) as entry:
                            data = file.create_dataset(key, data=entry["rows"])
                        data.attrs.update({about: value for about, value in fresh[key].items() if about != "key"})
                    else:
                        file.copy(earlier[key], key)
        with h5py.File(path, "r", locking=False) as file:
            tokens = {key: [int(count) for count in file[key].attrs.get("sentence_tokens", ())] for key in keys}
            return Joined(sum(len(data) for data in file.values()), tokens)

    def remove_parts(self) -> None:
        """Remove all parts, once they are in the feature files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _part(self, expert: str, key: str) -> Description | None:
        """The description of a part; None if there is no complete part."""
        path = self._part_path(expert, key)
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as content:
                description: Description = json.loads(content["about"].tobytes())
        except Exception:  # zipfile and numpy raise many types for a damaged file, which is then made again
            return None
        return description if description.get("key") == key else None

    def _part_path(self, expert: str, key: str) -> Path:
        return self.folder / expert / f"{_digest(key)}.npz"


def _digest(content: Any) -> str:
    encoded = json.dumps(content, sort_keys=True, ensure_ascii=False).encode()
    return hashlib.blake2b(encoded, digest_size=12).hexdigest()


def _describe_file(path: Path) -> dict[str, Description]:
    """The descriptions in the feature file of an earlier extraction; empty if it is absent or damaged."""
    if not path.is_file():
        return {}
    try:
        with h5py.File(path, "r", locking=False) as file:
            return {key: dict(data.attrs) for key, data in file.items()}
    except OSError:
        return {}


def row_times(data: h5py.Dataset) -> npt.NDArray[np.float64]:
    """(rows, 2): the first and last second that each row of a feature file covers.

    The row of a single image covers the time around it, the row of a window covers the window.

    Args:
        data: the rows of one recording, with the attributes that `crossclr extract` writes.
    """
    first, step, span, last = (float(data.attrs[f"{name}_sec"]) for name in ("first", "step", "span", "last"))
    starts = np.minimum(first + step * np.arange(len(data)), last)
    return np.stack([starts, starts + (span or step)], axis=1)


def describe_times(needs: Needs, rows: int, duration: float) -> dict[str, float]:
    """The attributes that ``row_times`` reads, for the rows of a recording."""
    step = 1.0 / needs.rows_per_second
    first = (step - needs.span) / 2 if needs.kind == "sound" else 0.0
    last = first + step * (rows - 1)
    if needs.kind == "windows":
        last = max(0.0, min(last, duration - needs.span))
    return {"first_sec": first, "step_sec": step, "span_sec": needs.span, "last_sec": last}
