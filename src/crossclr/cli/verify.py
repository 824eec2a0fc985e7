"""`crossclr verify`."""

from pathlib import Path
from typing import Annotated

import typer


def verify(
    path: Annotated[Path, typer.Argument(help="A run folder, a folder of runs, an index or an export.")],
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept all changes: write new checksums and data fingerprints.")
    ] = False,
) -> None:
    """Check a run folder or an index for damage and changed data.

    Every file is compared with its checksum, and the data of a run with the fingerprint that the run stored.
    Exit code 1 means that something differs.

    Examples:
        crossclr verify runs/first

        crossclr verify runs/first --accept
    """
    from crossclr.training.run import verify as run

    found = run(path, accept=accept)
    for difference in found.differences:
        typer.echo(difference)
    verb = "accepted" if accept else "found"
    typer.echo(f"{path}: {found.folders} folders checked, {len(found.differences)} differences {verb}")
    if found.differences and not accept:
        raise typer.Exit(1)
