"""Progress bars on stderr, so that results can be piped, and only in a terminal."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

Progress = Callable[[int, int], None]
"""Takes the numbers of finished and of all items."""


def progress_bar(shown: bool) -> ProgressBar:
    """A bar that disappears when it is done; nothing is written if stderr is not a terminal."""
    console = Console(stderr=True)
    return ProgressBar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    )


@contextmanager
def show_progress(description: str, shown: bool = True) -> Iterator[Progress]:
    """A bar for one task, and the function that updates it with the numbers of finished and of all items."""
    with progress_bar(shown) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def show_steps(shown: bool = True, delay: float = 2.0) -> Iterator[Callable[[str], None]]:
    """A function that is called with each step that begins; after some seconds, steps are lines on stderr."""
    console, steps, late = Console(stderr=True), [""], threading.Event()

    def show() -> None:
        late.set()
        console.print(steps[-1], highlight=False)

    def report(step: str) -> None:
        steps.append(step)
        if late.is_set():
            console.print(step, highlight=False)

    timer = threading.Timer(delay, show)
    if shown:
        timer.start()
    try:
        yield report
    finally:
        timer.cancel()
