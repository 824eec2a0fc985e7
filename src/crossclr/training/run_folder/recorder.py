"""Writes metrics and checkpoints into a run folder while training continues."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from crossclr.storage import restore_folder, sweep
from crossclr.training.run_folder.checkpoint import save_checkpoint, snapshot
from crossclr.training.run_folder.folder import RunFolder
from crossclr.training.run_folder.journal import Journal


class RunRecorder:
    """The recorder of a run folder; checkpoints are copied at once and written in the background.

    Args:
        run: the folder.
        state: the state that the run resumes from; metrics written after it are cut off.
    """

    def __init__(self, run: RunFolder[Any], state: Mapping[str, Any] | None = None) -> None:
        for name in ("last", "best"):
            restore_folder(run.path / name)
        sweep(run.path)
        size, step = (0, 0) if state is None else (state.get("metrics_bytes", 0), state["position"]["step"])
        self.run = run
        self.journal = Journal(run.path, size, step)
        self._writer = BackgroundWriter()

    def log(self, record: Mapping[str, Any]) -> None:
        """Append to the metrics."""
        self.journal.log(record)

    def save(self, weights: Mapping[str, Tensor], state: Mapping[str, Any], best: Mapping[str, Tensor] | None) -> None:
        """Copy the state and start writing it; waits while the one before is still being written."""
        self._writer.wait()
        taken = snapshot({**state, "metrics_bytes": self.journal.written})
        self._writer.start(self._write, snapshot(weights), taken, snapshot(best))

    def flush(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        self._writer.wait()

    def close(self) -> None:
        """Finish writing and close the metrics."""
        try:
            self._writer.wait()
        finally:
            self.journal.close()

    def _write(
        self, weights: Mapping[str, Tensor], state: Mapping[str, Any], best: Mapping[str, Tensor] | None
    ) -> None:
        # `best` before `last`: a kill between them repeats the epoch and writes the same `best` again
        self.journal.sync()
        if best is not None:
            chosen = {"position": state["position"], "schedule": state["schedule"]}
            save_checkpoint(self.run.path / "best", best, chosen)
        save_checkpoint(self.run.path / "last", weights, state)


class BackgroundWriter:
    """Runs one task at a time in a thread, so that training does not wait for the disk."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, function: Callable[..., None], *arguments: Any) -> None:
        """Wait for the previous task, then start this one."""
        self.wait()

        def run() -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self._error = error

        # not a daemon: a process that ends waits until the file is complete
        self._thread = threading.Thread(target=run, name="crossclr-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the task; raises its error once, if it had one."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
