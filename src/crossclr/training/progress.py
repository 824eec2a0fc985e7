"""Live progress of a training: a progress bar in a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from crossclr.training.trainable import Trainable

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
