"""The metrics of a run: JSON lines, byte-equal for equal runs, and TensorBoard events."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from crossclr.storage.json_files import parse_json

METRICS, EVENTS = "metrics.jsonl", "tensorboard"


class Journal:
    """Appends records to ``metrics.jsonl`` and to TensorBoard, the only one that gets times.

    Bytes of ``metrics.jsonl`` after ``size`` are cut off, because a run that resumes writes them again.
    """

    def __init__(self, folder: Path, size: int = 0, step: int = 0) -> None:
        from crossclr.training.run_folder.event_file import EventFile

        self.path = folder / METRICS
        self._file = self.path.open("ab")
        self._file.truncate(min(size, self.path.stat().st_size))
        self._file.seek(0, os.SEEK_END)
        self._events = EventFile(folder / EVENTS, step)

    @property
    def written(self) -> int:
        """Bytes written so far, without waiting for the disk."""
        self._file.flush()
        return self._file.tell()

    def sync(self) -> None:
        """Wait until everything is on the disk; any thread may call it."""
        os.fsync(self._file.fileno())

    def log(self, record: Mapping[str, Any]) -> None:
        """Add one record."""
        self._file.write(json.dumps(_finite(record), allow_nan=False).encode() + b"\n")
        self._file.flush()
        kind = str(record.get("kind", "step"))
        self._events.add(int(record["step"]), {f"{kind}/{name}": value for name, value in _numbers(record)})

    def close(self) -> None:
        """Close both files."""
        try:
            self._file.close()
        finally:
            self._events.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The records of a run, without a last line that a kill cut short."""
    path = folder / METRICS
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")
    whole = enumerate(lines[:-1], 1)  # text after the last line end is an incomplete line
    return [parse_json(line, f"{path} line {number}") for number, line in whole]


def _finite(value: Any) -> Any:
    """JSON has no infinity; null replaces it."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and math.isfinite(value) and name not in ("step", "epoch"):
            yield prefix + name, float(value)
