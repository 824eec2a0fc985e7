"""Events for TensorBoard. Only training writes them, so only training imports this file and TensorBoard."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]


class EventFile:
    """A file of TensorBoard events, written at once and in this thread, so that a full disk shows immediately.

    Args:
        first_step: the step from which a run resumes; TensorBoard then hides later steps of older files.
    """

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        stamp = f"{time.time():.6f}.{os.getpid()}"  # a new file for each start, in their order
        self._file = (folder / f"events.out.tfevents.{stamp}").open("xb")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if first_step:
            restart = SessionLog(status=SessionLog.SessionStatus.START)
            self._write(Event(wall_time=time.time(), step=first_step + 1, session_log=restart))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add the scalars of a step."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: Event) -> None:
        self._records.write(event.SerializeToString())
        self._file.flush()
