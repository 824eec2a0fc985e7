"""`crossclr caption`: write sentences from embeddings, and score them."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossclr.captions import Shown

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


class Features(StrEnum):
    """The rows of a sentence."""

    clip = "clip"
    vid = "vid"
    vidclip = "vidclip"
    vidclipctx = "vidclipctx"
    raw = "raw"


class Checkpoint(StrEnum):
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
    ] = 300.0,
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


@app.command()
def page(
    captioners: Annotated[
        list[Path],
        typer.Argument(metavar="CAPTIONER", help="Folders of captioners with the same data; the first leads."),
    ],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("captions.html"),
    split: Annotated[str | None, typer.Option(help="Split, or an embedding file; default: that of the scores.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Videos of each kind: good, bad and any.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice.")] = 0,
    references: Annotated[int, typer.Option(min=1, help="Captions of people shown for each clip.")] = 5,
    media: Annotated[
        Path | None, typer.Option(help="Folder of pictures, videos or sounds named like the samples, or a JSON table.")
    ] = None,
    meteor: Annotated[bool, typer.Option(help="Also METEOR, which needs Java.")] = True,
) -> None:
    """Write a page of captions beside what people wrote: good and bad ones, drawn at random with a seed.

    Words that stand in a reference are marked. Pictures and players stand beside the captions where the data has
    media. The page is one file and loads nothing from elsewhere (a media file above 8 MB is linked, not copied).

    Examples:
        crossclr caption page runs/msvd/captions/msvd --out msvd.html

        crossclr caption page runs/msvd/captions/msvd runs/msvd/captions/untrained --media /data/msvd/videos
    """
    from rich.console import Console

    from crossclr.captions import CaptionRun, CaptionSet, Writer, caption_page, generate_captions, score_captions
    from crossclr.captions.caption_page import choose
    from crossclr.captions.pipeline import final_part
    from crossclr.storage import write_file

    opened = [CaptionRun.open(path) for path in captioners]
    names = [run.path.resolve().name for run in opened]
    if len(set(names)) < len(names):
        names = [f"{run.path.resolve().parent.name}/{run.path.resolve().name}" for run in opened]
    part = split or final_part(opened[0].config)
    writers: list[Writer] = []
    sets: list[CaptionSet] = []
    for name, run in zip(names, opened, strict=True):
        written, data = generate_captions(run, part, progress=True)
        sets.append(data)
        if data.keys != sets[0].keys:
            raise ValueError(f"{run.path} has other videos than {opened[0].path}; a page needs the same for all")
        with Console(stderr=True).status(f"scoring {name}"):
            writers.append(Writer(name, written, score_captions(written, data.references(), with_meteor=meteor)))
    chosen = [key for keys in choose(writers[0].scores, count, seed).values() for key in keys]
    found = _media(opened[0].config.data.run, chosen, media, out.parent)
    title = f"Captions of {Path(part).stem}"
    text = caption_page(writers, sets[0], title=title, count=count, seed=seed, references=references, media=found)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_file(out, text)
    typer.echo(f"{out}: {len(chosen)} of {len(sets[0].keys)} videos, {len(found)} clips with media")


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders on the same data.")],
    out: Annotated[Path, typer.Option(help="Folder of the captioners and of the table.")],
    preset: Annotated[str, typer.Option(help="paper, small, msvd, or a YAML file.")] = "small",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the preset; may be given several times."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of the captioners, as 0,1,2.")] = "0,1,2",
    untrained: Annotated[
        bool, typer.Option("--untrained/--no-untrained", help="Also the first run's encoder before its training.")
    ] = True,
    meteor: Annotated[bool, typer.Option(help="Also METEOR, which needs Java.")] = True,
) -> None:
    """Caption from several runs with several seeds, and put all scores into one table.

    Where clips have several captions, people are scored too: one caption of each clip against the others. What is
    finished is kept and what was stopped goes on, so the same command continues. The table is also written as
    comparison.json, comparison.csv and comparison.md.

    Examples:
        crossclr caption compare runs/msvd-crossclr runs/msvd-clip --preset msvd --out runs/msvd-captions
    """
    from rich.console import Console

    from crossclr.captions import compare_captions, load_caption_config
    from crossclr.cli.seeds import parse_seeds
    from crossclr.training import Interrupted

    numbers = parse_seeds(seeds)
    console = Console()
    config = load_caption_config(preset, set_ or [])
    try:
        found = compare_captions(runs, config, numbers, out, untrained=untrained, with_meteor=meteor, console=console)
    except Interrupted:
        console.print("stopped; the same command continues", highlight=False)
        raise typer.Exit(130) from None
    console.print(found.table())
    for note in found.notes:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"written to {out / 'comparison.md'}, .csv and .json", highlight=False, soft_wrap=True)


def _media(run: str | None, keys: Sequence[str], place: Path | None, base: Path) -> dict[str, Shown]:
    """Pictures, videos and sounds of the clips, where the run's data (or ``place``) has them."""
    from crossclr.captions.caption_page import Shown, load_shown
    from crossclr.experts.media.file_types import media_type
    from crossclr.features import clip_keys
    from crossclr.search.items.media_files import MediaFinder
    from crossclr.training import Run

    if run is None:
        return {}
    source = Run.open(run).open_source()
    found: dict[str, Shown] = {}
    finder = MediaFinder(source, place)
    for key in keys:
        sample = source.read(key)
        for number, name in enumerate(clip_keys(sample.key, len(sample.clips))):
            image = source.image(name)
            if image is not None:
                found[name] = Shown("image", "image/webp", image)
                continue
            media = finder.find(sample, number, name)
            if media is not None:
                path = Path(media.file)
                found[name] = load_shown(media.kind, str(media_type(path)), path, media.start, media.stop, base)
    return found
