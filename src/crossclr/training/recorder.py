"""Live progress of a training: a progress bar in a terminal, plain lines elsewhere.

A recorder without a folder, for trainings that are repeated rather than resumed.

Writes metrics and checkpoints into a run folder while training continues.

`fit` into a run folder, with metrics, checkpoints, live progress and advice after an interruption.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from crossclr.storage import naming_full_disk, restore_folder, sweep
from crossclr.training.checkpoint import save_checkpoint, snapshot
from crossclr.training.loop import Interrupted, Trainable, Validate, fit
from crossclr.training.run_folder import Journal, RunFolder

PLAIN_EVERY = 15.0  # seconds between plain lines within an epoch


class LiveReporter:
    """Shows loss, pruned share, weight ratio, intra-modal share, queue fill, throughput and time left.

    Args:
        done: steps that a resumed run took before it stopped.
    """

    def __init__(self, console: Console, epochs: int, steps: int, done: int = 0) -> None:
        self.console, self.epochs, self.steps, self.first = console, epochs, steps, done
        self._began = self._spoke = time.monotonic()
        self._items = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("training", total=steps, completed=done, state="")

    def __enter__(self) -> "LiveReporter":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def step(self, record: Mapping[str, Any], items: int) -> None:
        """Move the bar; without a terminal, print a line every 15 seconds."""
        self._items += items
        now = time.monotonic()
        throughput = self._items / max(1e-9, now - self._began)
        state = f"{summary(record)}  {throughput:.0f} clips/s"
        description = f"epoch {record['epoch'] + 1}/{self.epochs}"
        self._progress.update(self._task, completed=record["step"], description=description, state=state)
        if not self.console.is_terminal and now - self._spoke > PLAIN_EVERY:
            self._spoke = now
            left = (now - self._began) / max(1, record["step"] - self.first) * (self.steps - record["step"])
            where = f"{description}  step {record['step']}/{self.steps}"
            self.console.print(f"{where}  {state}  {_clock(left)} left", soft_wrap=True, highlight=False, markup=False)

    def validation(self, done: int, total: int) -> None:
        """Show how many samples validation has finished."""
        self._progress.update(self._task, state=f"validating {done}/{total}")

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Print a line for each epoch, and its warning."""
        line = f"epoch {record['epoch'] + 1}/{self.epochs}  {summary(record)}"
        if "score" in record:
            line += f"  score {record['score']:.2f}" + ("  best so far" if record["best"] else "")
        self._spoke = time.monotonic()
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)
        if "warning" in record:
            self.console.print(f"warning: {record['warning']}", style="yellow", soft_wrap=True, markup=False)


@contextmanager
def live_progress(training: Trainable[Any], console: Console | None) -> Iterator[LiveReporter | None]:
    """Show the progress of a training on a console; None shows nothing."""
    if console is None:
        yield None
        return
    with LiveReporter(console, training.settings.epochs, training.steps, training.position.step) as reporter:
        yield reporter


def summary(record: Mapping[str, Any]) -> str:
    """The numbers of a record as a short line."""
    parts = [f"loss {record['loss']:.4f}", f"rate {record['learning_rate']:.2g}"]
    if "pruned" in record:
        parts += [f"pruned {record['pruned']:.0%}", f"weights {record['weight_ratio']:.2f}x"]
    if "intra_share" in record:
        parts.append(f"intra {record['intra_share']:.0%}")
    if record.get("queue_fill"):
        parts.append(f"queue {record['queue_fill']:.0%}")
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


class MemoryRecorder:
    """Keeps all records and the best weights in memory.

    Example:
        >>> recorder = MemoryRecorder()
        >>> recorder.log({"kind": "epoch", "epoch": 0, "step": 4, "loss": 1.5})
        >>> [record["loss"] for record in recorder.epochs]
        [1.5]
    """

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.best: dict[str, Tensor] = {}
        self.best_epoch = -1

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The records of epochs."""
        return [record for record in self.records if record["kind"] == "epoch"]

    def log(self, record: Mapping[str, Any]) -> None:
        """Keep a record."""
        self.records.append(dict(record))

    def save(self, weights: Mapping[str, Tensor], state: Mapping[str, Any], best: Mapping[str, Tensor] | None) -> None:
        """Keep the best weights."""
        if best is not None:
            self.best, self.best_epoch = snapshot(dict(best)), int(state["position"]["epoch"]) - 1

    def flush(self) -> None:
        """Nothing waits."""


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


def fit_run(
    run: RunFolder[Any],
    training: Trainable[Any],
    state: Mapping[str, Any] | None,
    *,
    validate: Validate | None = None,
    console: Console | None = None,
    command: str = "crossclr train",
) -> None:
    """Train from the current position to the end; only the first process writes and shows progress.

    Args:
        run: the run folder.
        training: what is trained.
        state: the state that training resumes from; None for a new run.
        validate: measures the model.
        console: where to show progress; None shows nothing.
        command: the command that resumes the run with ``--resume``.

    Raises:
        Interrupted: after Ctrl-C, with the path of the run.
        DiskFullError: the disk is full; the folder is complete up to its last checkpoint.
    """
    if not training.fabric.is_global_zero:
        fit(training, validate=validate)
        return
    recorder = RunRecorder(run, state)
    next_step = f"free some space, then run: {command} --resume {run.path}"
    try:
        with naming_full_disk(run.path, next_step), live_progress(training, console) as reporter:
            fit(training, recorder, reporter, validate)
    except Interrupted:
        raise Interrupted(run.path) from None
    finally:
        with contextlib.suppress(OSError):  # nothing is lost: what counts was synced with the last checkpoint
            recorder.close()
