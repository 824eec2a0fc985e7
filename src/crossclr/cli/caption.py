"""`crossclr caption`: write captions from embeddings, and score them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from crossclr.cli.options import Checkpoint, Force, Json, Media, Meteor, Set, parse_seeds, resumable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossclr.captions.html_page import MediaPreview

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich")

Features = Literal["clip", "vid", "vidclip", "vidclipctx", "raw"]
Preset = Annotated[str, typer.Option(help="paper, small, msvd, or a YAML file.")]


@app.callback()
def caption() -> None:
    """Write captions for clips from their embeddings, and score them."""


@app.command()
def train(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Run folder with the embeddings; default: embedding files."),
    ] = None,
    preset: Preset = "small",
    set_: Set = None,
    features: Annotated[
        Features | None, typer.Option(help="Input of a sentence: clip, vid, vidclip (the paper's +), vidclipctx, raw.")
    ] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Use the run's encoder before training, for comparison.")
    ] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the captioner.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the captioner; default RUN/captions/<preset>.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume this captioner.")] = None,
    meteor: Meteor = True,
) -> None:
    """Train a captioner on a run's embeddings and score its test captions.

    Without RUN, data.train and data.validate name embedding files, as written by `crossclr embed` or COOT. If these
    files hold no sentences, data.captions names the files that do.

    Examples:
        crossclr caption train runs/youcook2

        crossclr caption train runs/youcook2 --preset paper --features vidclip

        crossclr caption train runs/msvd --preset msvd --untrained --out runs/msvd/captions/untrained

        crossclr caption train --set data.train=train.h5 --set data.validate=val.h5

        crossclr caption train --resume runs/msvd/captions/msvd
    """
    from rich.console import Console

    from crossclr.captions import load_caption_config, train_captions
    from crossclr.captions.pipeline import resume_captions

    console = Console()
    given = {
        "data.run": None if run is None else str(run),
        "data.features": features,
        "data.untrained": untrained or None,
        "seed": seed,
    }
    changes = [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None] + (set_ or [])
    with resumable("crossclr caption train --resume"):
        if resume is not None:
            if changes or out is not None:
                raise ValueError(
                    "--resume keeps the settings of the captioner; it cannot be combined with other settings"
                )
            resume_captions(resume, console=console, meteor=meteor)
            return
        config = load_caption_config(preset, changes)
        if config.data.run is None and not Path(config.data.train).suffix:
            raise ValueError(
                "give a run folder, or embedding files with --set data.train=FILE --set data.validate=FILE"
            )
        train_captions(config, out=out, console=console, meteor=meteor)


@app.command()
def generate(
    captioner: Annotated[Path, typer.Argument(metavar="CAPTIONER", help="Folder of a captioner.")],
    split: Annotated[
        str | None, typer.Option(help="Split of its run, or an embedding file; default: the split of its final scores.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON to write; default: predictions-SPLIT.json in its folder.")
    ] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size; 1 is greedy.")] = None,
    block_ngram: Annotated[
        int | None, typer.Option(min=0, help="Never repeat an n-gram of this length in a sentence; 0: off.")
    ] = None,
    min_words: Annotated[int | None, typer.Option(min=0, help="Minimum number of words in a sentence.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(min=0.0, help="Divide beam scores by length to this power.")
    ] = None,
    checkpoint: Checkpoint = "best",
    force: Force = False,
) -> None:
    """Write a sentence for each clip, in MART's JSON format.

    Examples:
        crossclr caption generate runs/msvd/captions/msvd

        crossclr caption generate runs/youcook2/captions/small --split val --beam 3 --block-ngram 4 --out beam.json
    """
    from crossclr.captions import CaptionRun, generate_captions
    from crossclr.captions.caption_metrics import save_predictions
    from crossclr.captions.pipeline import final_part
    from crossclr.storage import check_free

    run = CaptionRun.open(captioner)
    given = {"beam": beam, "block_ngram": block_ngram, "min_words": min_words, "length_penalty": length_penalty}
    decoding = run.config.decoding.model_copy(update={k: v for k, v in given.items() if v is not None})
    part = split or final_part(run.config)
    check_free(out or run.predictions(part), force or out is None)
    written, _ = generate_captions(run, part, decoding=decoding, which=checkpoint, progress=True)
    path = save_predictions(written, out or run.predictions(part))
    typer.echo(f"{path}: {len(written)} videos, {sum(map(len, written.values()))} sentences")


@app.command()
def videos(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of videos, images or sounds.", exists=True)],
    captioner: Annotated[Path, typer.Option(help="Folder of a finished captioner.")],
    out: Annotated[Path | None, typer.Option(help="JSON to write; default: captions.json in the folder.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size; 1 is greedy.")] = None,
) -> None:
    """Write a sentence for each of your own files, with a captioner that was trained before.

    The experts that made the features of the captioner's run encode the files. A file that cannot be read is reported
    and omitted.

    Examples:
        crossclr caption videos my-videos --captioner runs/mine/captions/small
    """
    from crossclr.captions import CaptionRun
    from crossclr.captions.caption_metrics import save_predictions
    from crossclr.integrations.caption_files import caption_files

    written, problems = caption_files(CaptionRun.open(captioner), folder, beam=beam, progress=True)
    path = save_predictions(written, out or folder / "captions.json")
    for name, captions in written.items():
        typer.echo(f"{name}: {captions[0].text}")
    for name, problem in problems.items():
        typer.echo(f"{name}: {problem}", err=True)
    typer.echo(f"{path}: {len(written)} files")


@app.command()
def score(
    predictions: Annotated[Path, typer.Argument(metavar="PREDICTIONS", help="JSON of predictions in MART's format.")],
    references: Annotated[list[Path], typer.Option(help="JSON of references: paragraphs or captions; repeatable.")],
    meteor: Meteor = True,
    meteor_seconds: Annotated[
        float, typer.Option(min=1.0, help="Stop METEOR after this many seconds without an answer.")
    ] = 300.0,
    as_json: Json = False,
) -> None:
    """Score whole paragraphs as MART does: BLEU, METEOR, ROUGE-L, CIDEr-D, RE.

    The predictions may come from any model. If Java is missing, crashes or hangs, the command reports it and prints the
    other scores: BLEU@1-4, ROUGE-L, CIDEr-D and the repetition RE@1-4.

    Examples:
        crossclr caption score predictions.json --references captioning_val_para.json

        crossclr caption score predictions.json --references first.json --references second.json --json
    """
    from rich.console import Console

    from crossclr.captions import score_captions
    from crossclr.captions.caption_metrics import load_predictions, load_references

    wanted, written = load_references(references), load_predictions(predictions)
    with Console(stderr=True).status("scoring"):
        scores = score_captions(written, wanted, meteor=meteor, meteor_seconds=meteor_seconds)
    if as_json:
        typer.echo(json.dumps(scores.to_dict(), indent=2))
    else:
        Console().print(scores.table(predictions.name))
    for note in scores.notes:
        typer.echo(f"note: {note}", err=True)


@app.command()
def page(
    captioners: Annotated[
        list[Path],
        typer.Argument(metavar="CAPTIONER", help="Captioners on the same data; the first selects the videos."),
    ],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("captions.html"),
    split: Annotated[str | None, typer.Option(help="Split or embedding file; default: that of the scores.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of videos with good, bad and other captions each.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random choice.")] = 0,
    max_references: Annotated[int, typer.Option(min=1, help="Human captions shown for each clip.")] = 5,
    media: Media = None,
    meteor: Meteor = True,
    force: Force = False,
) -> None:
    """Write a page with good and bad captions next to human captions.

    The videos are chosen at random with a seed. Words that occur in a reference are highlighted. If the data has media,
    the page shows thumbnails, and players of the linked files. Only the thumbnails are part of the page.

    Examples:
        crossclr caption page runs/msvd/captions/msvd --out msvd.html

        crossclr caption page runs/msvd/captions/msvd runs/msvd/captions/untrained --media /data/msvd/videos
    """
    from rich.console import Console

    from crossclr.captions import CaptionRun, CaptionSet, generate_captions, score_captions
    from crossclr.captions.comparison import distinct_names
    from crossclr.captions.html_page import Writer, caption_page, choose
    from crossclr.captions.pipeline import final_part
    from crossclr.storage import check_free, write_file

    check_free(out, force)
    opened = [CaptionRun.open(path) for path in captioners]
    names = distinct_names([run.path for run in opened], "/")
    part = split or final_part(opened[0].config)
    writers: list[Writer] = []
    sets: list[CaptionSet] = []
    for name, run in zip(names, opened, strict=True):
        written, data = generate_captions(run, part, progress=True)
        sets.append(data)
        if data.keys != sets[0].keys:
            raise ValueError(f"{run.path} has other videos than {opened[0].path}; name captioners with the same videos")
        with Console(stderr=True).status(f"scoring {name}"):
            writers.append(Writer(name, written, score_captions(written, data.references(), meteor=meteor)))
    chosen = [key for keys in choose(writers[0].scores, count, seed).values() for key in keys]
    found = _media(opened[0].config.data.run, chosen, media, out.parent)
    title = f"Captions of {Path(part).stem}"
    text = caption_page(writers, sets[0], title=title, count=count, seed=seed, references=max_references, media=found)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_file(out, text)
    typer.echo(f"{out}: {len(chosen)} of {len(sets[0].keys)} videos, {len(found)} clips with media")


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders on the same data.")],
    out: Annotated[Path, typer.Option(help="Folder for the captioners and the table.")],
    preset: Preset = "small",
    set_: Set = None,
    seeds: Annotated[str, typer.Option(help="Seeds of the captioners, as in 0,1,2.")] = "0,1,2",
    untrained: Annotated[
        bool, typer.Option("--untrained/--no-untrained", help="Include the first run's encoder before training.")
    ] = True,
    meteor: Meteor = True,
) -> None:
    """Train captioners for several runs and seeds, and compare their scores.

    If clips have several captions, human captions are scored too: one caption of each clip against the others. Run the
    same command again to resume. The table is also written to comparison.json, comparison.csv and comparison.md.

    Examples:
        crossclr caption compare runs/msvd-crossclr runs/msvd-clip --preset msvd --out runs/msvd-captions
    """
    from rich.console import Console

    from crossclr.captions import load_caption_config
    from crossclr.captions.comparison import compare_captions

    numbers = parse_seeds(seeds) or []
    console = Console()
    config = load_caption_config(preset, set_ or [])
    with resumable():
        found = compare_captions(runs, config, numbers, out, untrained=untrained, meteor=meteor, console=console)
    console.print(found.table())
    for note in found.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"written to {out / 'comparison.md'}, .csv and .json")


def _media(run: str | None, keys: Sequence[str], place: Path | None, base: Path) -> dict[str, MediaPreview]:
    """Images, videos and sounds of the clips, if the run's data (or ``place``) has them."""
    from crossclr.captions.html_page import MediaPreview, link_to
    from crossclr.data.emoji_set import is_built_in, read_image
    from crossclr.data.sample import clip_keys
    from crossclr.search.previews import make_preview
    from crossclr.search.run_items import MediaFinder
    from crossclr.training import Run

    if run is None:
        return {}
    data = Run.open(run).open_data()
    found: dict[str, MediaPreview] = {}
    finder = MediaFinder(place)
    for key in keys:
        sample = data.where(keys=[key])[0]
        for number, name in enumerate(clip_keys(sample.key, sample.clip_count)):
            if sample.media and is_built_in(sample.media[number]):
                found[name] = MediaPreview("image", read_image(sample.media[number]))
                continue
            media = finder.find(sample, number, name)
            if media is not None:
                path = Path(media.file)
                small = None if media.kind == "audio" else make_preview(path, media.start, media.stop)
                found[name] = MediaPreview(media.kind, small, link_to(path, base), media.start, media.stop)
    return found
