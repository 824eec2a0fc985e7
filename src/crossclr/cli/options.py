"""Options that several commands share, and the hint after Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the config; repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Checkpoint = Annotated[Literal["best", "last"], typer.Option(help="Checkpoint to use.")]
Meteor = Annotated[bool, typer.Option(help="Include METEOR; needs Java.")]
Media = Annotated[
    Path | None, typer.Option(help="Folder of images, videos or sounds named like the samples, or a JSON table.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Trainings at the same time; default: the number of CPU cores.")]


def parse_seeds(text: str) -> list[int]:
    """The numbers of ``--seeds 0,1,2``.

    Raises:
        ValueError: the text is not a list of different numbers.

    Example:
        >>> parse_seeds("0,1,2")
        [0, 1, 2]
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds takes numbers separated by commas, as in 0,1,2; got {text!r}") from None
    if len(set(found)) != len(found):
        raise ValueError(f"--seeds takes different numbers, got {text!r}")
    return found


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
