"""Options that several commands share, and the hint after Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console


def find_run(path: Path) -> Path:
    """A run folder as it is given, or the run inside a folder that `crossclr start` made."""
    inside = path / "run"
    return inside if (inside / "config.yaml").is_file() and not (path / "config.yaml").is_file() else path


RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", callback=find_run)]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the config. Repeatable.")
]
Captions = Annotated[
    Path | None, typer.Option(help="Sentences, as JSON or CSV; default: the subtitles next to each video.")
]
Host = Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 lets other machines connect.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1 or mps.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")]
Checkpoint = Annotated[Literal["best", "last"], typer.Option(help="Checkpoint to use.")]
Meteor = Annotated[bool, typer.Option(help="Include METEOR; needs Java.")]
Media = Annotated[
    Path | None,
    typer.Option(
        help="Folder of images, videos or sounds named like the samples, or a JSON table. Default: media.json of "
        "crossclr extract."
    ),
]
Seeds = Annotated[str | None, typer.Option(help="Seeds, such as 0,1,2; default: those of the study.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Trainings at the same time; default: the number of CPU cores.")]


def say(console: Console, text: str) -> None:
    """Print a line as it is, without colours, markup or line breaks of our own."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """A duration for a person.

    Example:
        >>> duration(40), duration(600), duration(9000)
        ('40.0 s', '10.0 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def parse_seeds(text: str | None) -> list[int] | None:
    """The numbers of ``--seeds 0,1,2``; None if the option is absent.

    Example:
        >>> parse_seeds("0,1,2")
        [0, 1, 2]
    """
    if text is None:
        return None
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds takes numbers separated by commas, as in 0,1,2; got {text!r}") from None
    if len(set(found)) != len(found):
        raise ValueError(f"--seeds takes different numbers, got {text!r}")
    return found


@contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on a terminal, and the function that moves it: the task, the steps done and all steps or 0."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("opening the data", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield show


@contextmanager
def resumable(command: str | None = None) -> Iterator[None]:
    """After Ctrl-C, show how to resume: with this command and the run folder, or with the same command (None)."""
    from crossclr.training import Interrupted

    try:
        yield
    except Interrupted as stopped:
        hint = "run the same command again to resume" if command is None else f"resume with: {command} {stopped}"
        typer.echo(f"stopped; {hint}")
        raise typer.Exit(130) from None
