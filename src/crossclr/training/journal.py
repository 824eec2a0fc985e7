"""The metrics of a run: JSON lines, which are equal for equal runs byte for byte, and TensorBoard events."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard.writer import SummaryWriter

METRICS = "metrics.jsonl"


class Journal:
    """Appends records to ``metrics.jsonl`` and to TensorBoard.

    Times are left to TensorBoard, so that the lines of two equal runs are equal.

    Args:
        folder: the run folder.
        size: bytes of ``metrics.jsonl`` that belong to the state from which the run continues; what was written after
            that state is cut off and will be written again.
        step: the step of that state.
    """

    def __init__(self, folder: Path, size: int = 0, step: int = 0) -> None:
        self.path = folder / METRICS
        self._file = self.path.open("ab")
        self._file.truncate(min(size, self.path.stat().st_size))
        self._file.seek(0, os.SEEK_END)
        self._events = SummaryWriter(str(folder / "tensorboard"), purge_step=step or None)

    @property
    def size(self) -> int:
        """Bytes written so far; on the disk when this returns."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def log(self, record: Mapping[str, Any]) -> None:
        """Add one record."""
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()
        kind = str(record.get("kind", "step"))
        for name, value in _numbers(record):
            self._events.add_scalar(f"{kind}/{name}", value, int(record["step"]))

    def close(self) -> None:
        """Close both files."""
        self._file.close()
        self._events.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The records of a run; a last line that was cut short by a kill is left out."""
    path = folder / METRICS
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]  # what follows the last line end is no complete line


def _numbers(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name not in ("step", "epoch"):
            yield prefix + name, float(value)
