"""`crossclr caption`: write sentences from embeddings, and score them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


@app.callback()
def caption() -> None:
    """Write a sentence for each clip from its embedding, and score what was written."""


@app.command()
def score(
    predictions: Annotated[Path, typer.Argument(metavar="PREDICTIONS", help="JSON of predictions in MART's format.")],
    references: Annotated[
        list[Path], typer.Option(help="JSON of references: paragraphs, or many captions; may be given several times.")
    ],
    meteor: Annotated[bool, typer.Option(help="Also METEOR, which needs Java.")] = True,
    meteor_seconds: Annotated[
        float, typer.Option(min=1.0, help="End METEOR when it gives no answer for so many seconds.")
    ] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Score predictions: BLEU@1-4, METEOR, ROUGE-L, CIDEr-D and repetition, as MART does for whole paragraphs.

    Any model's predictions can be scored. Where Java is missing, dies or hangs, METEOR says so and the rest is given.

    Examples:
        crossclr caption score predictions.json --references captioning_val_para.json

        crossclr caption score predictions.json --references first.json --references second.json --json
    """
    from rich.console import Console

    from crossclr.captions import load_predictions, load_references, score_captions

    console = Console(stderr=True)
    wanted, written = load_references(references), load_predictions(predictions)
    with console.status("scoring"):
        scores = score_captions(written, wanted, with_meteor=meteor, meteor_seconds=meteor_seconds)
    if as_json:
        typer.echo(json.dumps(scores.to_dict(), indent=2))
    else:
        Console().print(scores.table(predictions.name))
    for note in scores.notes:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
