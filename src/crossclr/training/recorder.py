"""What a training leaves behind: live progress, metrics and checkpoints, in a run folder or in memory."""

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from crossclr.storage import naming_full_disk, restore_folder, sweep
from crossclr.training.checkpoint import save_checkpoint, snapshot
from crossclr.training.loop import Interrupted, Recorder, Reporter, Trainable, Validate, fit
from crossclr.training.run_folder import METRICS, RunFolder

EVENTS = "tensorboard"
PLAIN_EVERY = 15.0  # seconds between plain lines within an epoch


class LiveReporter(Reporter):
    """Shows loss, pruned share, weight ratio, intra-modal share, queue fill, throughput and time left.

    Args:
        done: steps that a resumed run took before it stopped.
    """

    def __init__(self, console: Console, epochs: int, steps: int, done: int = 0) -> None:
        self.console, self.epochs, self.steps, self.first = console, epochs, steps, done
        self._began = self._spoke = time.monotonic()
        self._items = 0
        self.bar = Progress(
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
        self._task = self.bar.add_task("training", total=steps, completed=done, state="")

    def step(self, record: Mapping[str, Any], items: int) -> None:
        """Move the bar; without a terminal, print a line every 15 seconds."""
        self._items += items
        now = time.monotonic()
        throughput = self._items / max(1e-9, now - self._began)
        state = f"{summary(record)}  {throughput:.0f} clips/s"
        description = f"epoch {record['epoch'] + 1}/{self.epochs}"
        self.bar.update(self._task, completed=record["step"], description=description, state=state)
        if not self.console.is_terminal and now - self._spoke > PLAIN_EVERY:
            self._spoke = now
            left = (now - self._began) / max(1, record["step"] - self.first) * (self.steps - record["step"])
            where = f"{description}  step {record['step']}/{self.steps}"
            self.console.print(f"{where}  {state}  {_clock(left)} left", soft_wrap=True, highlight=False, markup=False)

    def validation(self, done: int, total: int) -> None:
        """Show how many samples validation has finished."""
        self.bar.update(self._task, state=f"validating {done}/{total}")

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
def live_progress(training: Trainable[Any], console: Console | None) -> Iterator[Reporter]:
    """Show the progress of a training on a console; None shows nothing."""
    if console is None:
        yield Reporter()
        return
    reporter = LiveReporter(console, training.config.training.epochs, training.steps, training.position.step)
    with reporter.bar:
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


class MemoryRecorder(Recorder):
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


class RunRecorder(Recorder):
    """The recorder of a run folder: metrics as JSON lines, and as events with times if TensorBoard is installed.

    Checkpoints are copied at once and written in the background.

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
        self._metrics = (run.path / METRICS).open("ab")
        self._metrics.truncate(min(size, self._metrics.tell()))
        self._metrics.seek(0, os.SEEK_END)
        self._events = EventFile(run.path / EVENTS, step) if find_spec("tensorboard") is not None else None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="crossclr-checkpoint")
        self._writing: Future[None] | None = None  # a process that ends waits until it is done

    def log(self, record: Mapping[str, Any]) -> None:
        """Append to the metrics."""
        self._metrics.write(json.dumps(_finite(record), allow_nan=False).encode() + b"\n")
        self._metrics.flush()
        kind = str(record.get("kind", "step"))
        if self._events is not None:
            self._events.add(int(record["step"]), {f"{kind}/{name}": value for name, value in _numbers(record)})

    def save(self, weights: Mapping[str, Tensor], state: Mapping[str, Any], best: Mapping[str, Tensor] | None) -> None:
        """Copy the state and start writing it; waits while the one before is still being written."""
        self.flush()
        taken = snapshot({**state, "metrics_bytes": self._metrics.tell()})
        self._writing = self._pool.submit(self._write, snapshot(weights), taken, snapshot(best))

    def flush(self) -> None:
        """Wait until the last checkpoint is on the disk; raises its error once, if it had one."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Finish writing and close the metrics."""
        try:
            self.flush()
        finally:
            self._pool.shutdown()
            if self._events is not None:
                self._events.close()
            self._metrics.close()

    def _write(
        self, weights: Mapping[str, Tensor], state: Mapping[str, Any], best: Mapping[str, Tensor] | None
    ) -> None:
        # `best` before `last`: a kill between them repeats the epoch and writes the same `best` again
        os.fsync(self._metrics.fileno())
        if best is not None:
            chosen = {"position": state["position"], "schedule": state["schedule"]}
            save_checkpoint(self.run.path / "best", best, chosen)
        save_checkpoint(self.run.path / "last", weights, state)


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


class EventFile:
    """A file of TensorBoard events, written at once and in this thread, so that a full disk shows immediately.

    Args:
        first_step: the step from which a run resumes; TensorBoard then hides later steps of older files.
    """

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        # Here, because only a training in a run folder needs TensorBoard.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        folder.mkdir(exist_ok=True)
        stamp = f"{time.time():.6f}.{os.getpid()}"  # a new file for each start, in their order
        self._file = (folder / f"events.out.tfevents.{stamp}").open("xb")
        self._records, self._event, self._summary = RecordWriter(self._file), Event, Summary
        self._write(file_version="brain.Event:2")
        if first_step:
            self._write(step=first_step + 1, session_log=SessionLog(status=SessionLog.SessionStatus.START))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add the scalars of a step."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._write(step=step, summary=self._summary(value=values))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, **event: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **event).SerializeToString())
        self._file.flush()


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
