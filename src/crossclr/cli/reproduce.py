"""`crossclr study reproduce`: the paper's tables and figures, its numbers next to ours."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossclr.cli.options import Seeds, Set, duration, parse_seeds, resumable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from crossclr.studies.reproduce import Reproduction
    from crossclr.studies.trainings import Job

TARGETS = "losses, ablation, state-of-the-art, modalities, captioning, multiple-positives, experts, sweeps, figures"


def reproduce(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=f"What to reproduce: {TARGETS}.")],
    data: Annotated[Path, typer.Option(help="Folder with the features of YouCook2 or LSMDC, in COOT's layout.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for trainings and results; default: reproduce/<name of DATA>."),
    ] = None,
    set_: Set = None,
    seeds: Seeds = None,
    clip_level: Annotated[
        bool, typer.Option("--clip-level", help="Quick check: an MLP on pooled clips instead of the full model.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Trainings at the same time, with --clip-level only; default: CPU cores.")
    ] = None,
    printed: Annotated[
        str | None,
        typer.Option(help="A literal reading of the paper's loss: equation, algorithm or pseudo-code; default: ours."),
    ] = None,
    sweep: Annotated[str | None, typer.Option(help="The only option that sweeps varies, such as queue_size.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the planned trainings and the estimated time, then exit.")
    ] = False,
) -> None:
    """Reproduce a table or figure of the paper with its own settings and seeds.

    Trains what is missing, prints the paper's numbers next to ours with the difference, and writes them to
    OUT/reproduce-WHAT.json and .html. Ctrl-C stops; the same command resumes, also within a training.

    Examples:
        crossclr study reproduce losses --data youcook2 --dry-run

        crossclr study reproduce losses --data youcook2

        crossclr study reproduce ablation --data youcook2 --clip-level --seeds 0,1

        crossclr study reproduce losses --data youcook2 --set data.text=text_feat_minilm.h5 --set training.epochs=10

        crossclr study reproduce captioning --data youcook2 --set captions.vocabulary.word_vectors=glove.6B.300d.txt
    """
    from rich.console import Console

    from crossclr.studies.reproduce import open_reproduction, show_differences
    from crossclr.studies.reproduce import reproduce as run_reproduction
    from crossclr.studies.trainings import perform

    console = Console()
    name = "-".join([data.resolve().name, *(["clip-level"] if clip_level else []), *([printed] if printed else [])])
    folder, given = out or Path("reproduce") / name, parse_seeds(seeds)
    how = {"overrides": set_ or [], "clip_level": clip_level, "printed": printed, "sweep": sweep}
    wanted = open_reproduction(what, data, folder, seeds=given, **how)  # type: ignore[arg-type]
    show_differences(wanted, console)
    at_once = (jobs or os.cpu_count() or 1) if clip_level else 1
    if dry_run:
        _show_plan(wanted, clip_level, at_once, console)
        return

    with resumable():
        run_reproduction(
            wanted,
            train=perform if clip_level else lambda job, out: _train_run_folder(job, out, console),
            caption=lambda run, features, out, seed: _caption(run, features, out, seed, wanted.captioner, console),
            jobs=at_once,
            console=console,
        )


def _show_plan(wanted: Reproduction, clip_level: bool, at_once: int, console: Console) -> None:
    console.print(*wanted.plan().rich())
    missing = wanted.missing()
    captioners = [name for name, done in wanted.captioners() if not done]
    if not missing and not captioners:
        console.print("Every training is finished.", highlight=False)
        return
    with console.status("measuring a few steps"):
        seconds = wanted.estimated_seconds(in_memory=clip_level)
    for name, each in seconds.items():
        typer.echo(f"{name}: about {duration(each)} for each seed")
    total = sum(seconds[job.name] for job in missing) / at_once
    typer.echo(f"{len(missing)} trainings to run, {duration(total)} in total on this machine.")
    if captioners:
        typer.echo(f"{len(captioners)} captioners to train after them; their time is not estimated.")


def _train_run_folder(job: Job, out: Path, console: Console) -> dict[str, Any]:
    """Train as `crossclr train` does, so that an interrupted training resumes where it stopped."""
    from crossclr import api

    path = job.path(out)
    console.print(f"{job.name}, seed {job.config.seed}", highlight=False)
    if (path / "config.yaml").is_file():
        run = api.resume(path, baseline=False, console=console)
    else:
        run = api.train(job.config, out=path, baseline=False, console=console)
    return dict(run.results or {})  # type: ignore[union-attr]  # the folder of one seed is one run


def _caption(
    run: Path, features: str, out: Path, seed: int, changes: Sequence[str], console: Console
) -> Mapping[str, float]:
    from crossclr.captions import load_caption_config, train_captions
    from crossclr.captions.caption_metrics import shown_name
    from crossclr.captions.pipeline import resume_captions

    if (out / "config.yaml").is_file():
        found = resume_captions(out, console=console)
    else:
        given = [f"data.run={json.dumps(str(run))}", f"data.features={features}", f"seed={seed}"]
        found = train_captions(load_caption_config("paper", [*given, *changes]), out=out, console=console)
    scores = (found.results or {}).get("metrics", {})
    return {shown_name(name): value for name, value in scores.items() if value is not None}
