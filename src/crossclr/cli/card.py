"""`crossclr card`: the model card of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def card(run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]) -> None:
    """Rewrite the model card (README.md) of a run: data, config, results, limits, licence of the data.

    Training writes it at its end.

    Examples:
        crossclr card runs/emoji
    """
    from crossclr.evaluation.runs.model_card import write_card

    typer.echo(str(write_card(run)))
