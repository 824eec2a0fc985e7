"""`crossclr demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each loss.")] = 3,
) -> None:
    """Train CrossCLR and CLIP on the built-in set, compare them, and search in it.

    What an earlier call has finished is not done again; Ctrl-C is safe.

    Examples:
        crossclr demo

        crossclr demo --seeds 1 --out /tmp/demo
    """
    from crossclr.demo import demo as run_demo
    from crossclr.training import Interrupted

    try:
        run_demo(out, seeds=range(seeds))
    except Interrupted:
        typer.echo("stopped; the same command continues")
        raise typer.Exit(130) from None
