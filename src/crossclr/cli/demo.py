"""`crossclr demo`: train, compare and search on the built-in set."""

from pathlib import Path
from typing import Annotated

import typer

from crossclr.cli.options import parse_seeds, resumable


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
    from crossclr.demo import demo as run_demo

    with resumable():
        run_demo(out, seeds=parse_seeds(seeds))
