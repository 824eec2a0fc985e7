"""COOT's meta file: the videos with their segments and sentences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.features.errors import DataError
from crossclr.features.reading.strict_json import read_json


@dataclass(frozen=True)
class Entry:
    """One datapoint of the meta file: a video and its segments."""

    key: str
    data_key: str
    duration: float
    split: str
    texts: tuple[str, ...]
    starts: npt.NDArray[np.float64]
    stops: npt.NDArray[np.float64]


def read_meta(path: Path, max_datapoints: int = -1) -> list[Entry]:
    """The entries of a meta file in the order of their keys.

    Args:
        path: the JSON file.
        max_datapoints: keep only the first N keys; -1 keeps all.
    """
    meta = read_json(path)
    if not isinstance(meta, dict) or not meta:
        raise DataError(f"{path}: an object with one entry for each datapoint key is needed")
    keys = sorted(meta)
    return [_entry(path, key, meta[key]) for key in (keys if max_datapoints < 0 else keys[:max_datapoints])]


def _entry(path: Path, key: str, value: Any) -> Entry:
    try:
        segments = value["segments"]
        entry = Entry(
            key=key,
            data_key=str(value["data_key"]),
            duration=float(value["duration_sec"]),
            split=str(value["split"]),
            texts=tuple(str(segment["text"]) for segment in segments),
            starts=np.array([float(segment["start_sec"]) for segment in segments]),
            stops=np.array([float(segment["stop_sec"]) for segment in segments]),
        )
    except (KeyError, TypeError, ValueError) as error:
        what = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{path}: entry {key!r}: {what}; each entry needs data_key, duration_sec, split and segments with text, "
            "start_sec and stop_sec"
        ) from error
    if not segments:
        raise DataError(f"{path}: entry {key!r} has no segments; drop it")
    times = np.concatenate([[entry.duration], entry.starts, entry.stops])
    if not np.isfinite(times).all() or entry.duration <= 0:
        raise DataError(f"{path}: entry {key!r}: duration_sec must be above 0 and all times finite")
    return entry
