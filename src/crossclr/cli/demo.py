"""`crossclr demo`: train, compare and search on the built-in set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/demo"),
    seeds: Annotated[str, typer.Option(help="Seeds of each loss, as in 0,1,2.")] = "0,1,2",
) -> None:
    """Train CrossCLR and CLIP on the built-in set, compare and search.

    Finished parts of an earlier call are reused; Ctrl-C is safe.

    Examples:
        crossclr demo

        crossclr demo --seeds 0 --out /tmp/demo
    """
    from crossclr.cli.seeds import parse_seeds
    from crossclr.demo import demo as run_demo
    from crossclr.training import Interrupted

    try:
        run_demo(out, seeds=parse_seeds(seeds))
    except Interrupted:
        typer.echo("stopped; run the same command again to resume")
        raise typer.Exit(130) from None
