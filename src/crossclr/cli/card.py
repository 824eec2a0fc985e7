"""`crossclr card`: the model card of a run."""

import typer

from crossclr.cli.options import RunFolder


def card(run: RunFolder) -> None:
    """Rewrite the model card (README.md) of a run: data, config, results, limits, licence of the data.

    Training writes the card when it ends.

    Examples:
        crossclr card runs/emoji
    """
    from crossclr.evaluation.card import write_card

    typer.echo(str(write_card(run)))
