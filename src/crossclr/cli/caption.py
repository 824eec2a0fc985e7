"""`crossclr caption`: write sentences from embeddings, and score them."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


class Features(str, Enum):
    """The rows of a sentence."""

    clip = "clip"
    vid = "vid"
    vidclip = "vidclip"
    vidclipctx = "vidclipctx"
    raw = "raw"


class Checkpoint(str, Enum):
    """The checkpoints of a captioner."""

    best = "best"
    last = "last"


@app.callback()
def caption() -> None:
    """Write a sentence for each clip from its embedding, and score what was written."""


@app.command()
def train(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Run folder whose embeddings are captioned; none: files are.")
    ] = None,
    preset: Annotated[str, typer.Option(help="paper, small, msvd, or a YAML file.")] = "small",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the preset; may be given several times."),
    ] = None,
    features: Annotated[
        Features | None, typer.Option(help="Row of a sentence: clip, vid, vidclip (the paper's +), vidclipctx or raw.")
    ] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Take the run's encoder as it was before training, to compare with.")
    ] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the captioner.")] = None,
    out: Annotated[Path | None, typer.Option(help="Its folder; default RUN/captions/<name of the preset>.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue this captioner.")] = None,
    meteor: Annotated[bool, typer.Option(help="Also METEOR in the final scores, which needs Java.")] = True,
) -> None:
    """Train a captioner on the embeddings of a run, choose the best epoch, write and score the test captions.

    Without RUN, data.train and data.validate name embedding files (as `crossclr embed` or COOT write them), and
    data.captions the sentences where the files hold none.

    Examples:
        crossclr caption train runs/youcook2

        crossclr caption train runs/youcook2 --preset paper --features vidclip

        crossclr caption train runs/msvd --preset msvd --untrained --out runs/msvd/captions/untrained

        crossclr caption train --set data.train=train.h5 --set data.validate=val.h5

        crossclr caption train --resume runs/msvd/captions/msvd
    """
    from rich.console import Console

    from crossclr.captions import load_caption_config, resume_captions, train_captions
    from crossclr.training import Interrupted

    console = Console()
    try:
        if resume is not None:
            if run is not None or set_ or out is not None or features is not None or untrained or seed is not None:
                raise ValueError("--resume continues a captioner as it was begun; it goes without other settings")
            resume_captions(resume, console=console, with_meteor=meteor)
            return
        given: dict[str, object] = {}
        if run is not None:
            given["data.run"] = str(run)
        if features is not None:
            given["data.features"] = features.value
        if untrained:
            given["data.untrained"] = True
        if seed is not None:
            given["seed"] = seed
        texts = [f"{key}={json.dumps(value)}" for key, value in given.items()]
        config = load_caption_config(preset, [*texts, *(set_ or [])])
        if config.data.run is None and not Path(config.data.train).suffix:
            raise ValueError(
                "name a run folder, or embedding files with --set data.train=FILE --set data.validate=FILE"
            )
        train_captions(config, out=out, console=console, with_meteor=meteor)
    except Interrupted as stopped:
        console.print(
            f"stopped; continue with: crossclr caption train --resume {stopped}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(130) from None


@app.command()
def generate(
    captioner: Annotated[Path, typer.Argument(metavar="CAPTIONER", help="Folder of a captioner.")],
    split: Annotated[
        str | None, typer.Option(help="Split of its run, or an embedding file; default: that of its final scores.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON to write; default: predictions-SPLIT.json in its folder.")
    ] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Hypotheses kept side by side; 1 is greedy.")] = None,
    block_ngram: Annotated[
        int | None, typer.Option(min=0, help="No n-gram of this length twice in a sentence; 0: any.")
    ] = None,
    min_words: Annotated[int | None, typer.Option(min=0, help="Words that a sentence has at least.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(min=0.0, help="Beam: divide scores by length to this power.")
    ] = None,
    checkpoint: Annotated[Checkpoint, typer.Option(help="Checkpoint to take.")] = Checkpoint.best,
) -> None:
    """Write a sentence for each clip, in MART's JSON format.

    Examples:
        crossclr caption generate runs/msvd/captions/msvd

        crossclr caption generate runs/youcook2/captions/small --split val --beam 3 --block-ngram 4 --out beam.json
    """
    from crossclr.captions import CaptionRun, generate_captions, save_predictions
    from crossclr.captions.pipeline import final_part

    run = CaptionRun.open(captioner)
    asked = {"beam": beam, "block_ngram": block_ngram, "min_words": min_words, "length_penalty": length_penalty}
    decoding = run.config.decoding.model_copy(update={k: v for k, v in asked.items() if v is not None})
    part = split or final_part(run.config)
    written, _ = generate_captions(run, part, decoding=decoding, which=checkpoint.value, progress=True)
    path = save_predictions(written, out or run.predictions(part))
    typer.echo(f"{path}: {len(written)} videos, {sum(map(len, written.values()))} sentences")


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
