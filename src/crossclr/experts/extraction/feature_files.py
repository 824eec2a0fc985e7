"""Finished rows as a data set in COOT's layout: one HDF5 file for each expert, the meta file, and a manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from crossclr.experts.contract import Expert
from crossclr.experts.extraction.finished_parts import Shards
from crossclr.storage import new_file

META, MANIFEST, CONFIG, MEDIA = "meta_all.json", "manifest.json", "config.yaml", "media.json"


class FeatureFile:
    """The finished rows of one expert, if an earlier run left some.

    Args:
        path: the HDF5 file; it may be absent or damaged, and is then empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._about: dict[str, dict[str, Any]] = {}
        if path.is_file():
            try:
                with h5py.File(path, "r", locking=False) as file:
                    self._about = {key: _plain(data.attrs) for key, data in file.items()}
            except OSError:
                self._about = {}

    def about(self, key: str) -> dict[str, Any] | None:
        """What stands beside the rows of a key."""
        return self._about.get(key)

    def __len__(self) -> int:
        return len(self._about)

    def keys(self) -> set[str]:
        """All keys."""
        return set(self._about)


def write_features(
    out: Path,
    expert: Expert,
    keys: Sequence[str],
    before: FeatureFile,
    shards: Shards,
    stored: str,
    fingerprints: Mapping[str, str],
) -> dict[str, list[int]]:
    """Join the parts of one expert, and what an earlier run has, into ``<expert>.h5``.

    Args:
        out: the output folder.
        expert: who made them.
        keys: the recordings or paragraphs that have rows.
        before: the file of an earlier run.
        shards: finished parts.
        stored: number type of the rows.
        fingerprints: of each key; rows with another one are out of date.

    Returns:
        for each key the tokens of each sentence, empty lists for recordings.
    """
    path = out / f"{expert.name}.h5"
    fresh = {key for key in keys if _valid(shards.about(expert.name, key), fingerprints[key])}
    if not fresh and set(keys) == before.keys():
        return {key: list((before.about(key) or {}).get("sentence_tokens", [])) for key in keys}
    counts: dict[str, list[int]] = {}
    with new_file(path) as temporary, h5py.File(temporary, "w", libver=("v108", "v110")) as file:
        _describe(file.attrs, {**asdict(expert.origin()), "needs": expert.needs.kind})
        old = h5py.File(before.path, "r", locking=False) if len(before) else None
        for key in keys:
            if key in fresh:
                shard = shards.read(expert.name, key)
                data = file.create_dataset(key, data=shard.rows.astype(stored))
                about = shard.about | ({"sentence_tokens": shard.counts} if shard.counts else {})
                _describe(data.attrs, {name: value for name, value in about.items() if name != "key"})
            elif old is not None:
                old.copy(key, file)
            counts[key] = [int(count) for count in file[key].attrs.get("sentence_tokens", [])]
        if old is not None:
            old.close()
    return counts


def row_times(data: h5py.Dataset) -> npt.NDArray[np.float64]:
    """(rows, 2) the seconds that each row of a feature file stands for, from its first to its last.

    A row of a single picture stands for the time around it; a row of a window for what the window sees.
    """
    attributes = _plain(data.attrs)
    first, step, span = (float(attributes[name]) for name in ("first_sec", "step_sec", "span_sec"))
    starts = np.minimum(first + step * np.arange(len(data)), float(attributes["last_sec"]))
    return np.stack([starts, starts + (span or step)], axis=1)


def times_of(expert: Expert, rows: int, duration: float) -> dict[str, float]:
    """Where the rows of a recording lie in time, as ``row_times`` reads it."""
    needs = expert.needs
    step = 1.0 / needs.rows_per_second
    first = 0.0 if needs.kind in ("frames", "boxes", "windows") else (step - needs.span) / 2
    last = first + step * (rows - 1)
    if needs.kind == "windows":
        last = max(0.0, min(last, duration - needs.span))
    return {"first_sec": first, "step_sec": step, "span_sec": needs.span, "last_sec": last}


def _valid(about: Mapping[str, Any] | None, fingerprint: str) -> bool:
    return about is not None and about.get("fingerprint") == fingerprint


def _describe(attributes: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        attributes[name] = value


def _plain(attributes: Any) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for name, value in attributes.items()
    }
