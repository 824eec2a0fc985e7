"""`crossclr experiment` and `crossclr report`: the paper's tables and figures on any data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    str, typer.Option(help="A shipped study (emoji, msvd, youcook2-spoken), or a YAML file of a study or a run config.")
]
Out = Annotated[Path, typer.Option(help="Folder of the study: runs, tuning, tables, report. Call again to go on.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a field of every run's config; may be given several times."
    ),
]
Seeds = Annotated[str | None, typer.Option(help="Seeds, as 0,1,2,3,4; default: the study's.")]
Trials = Annotated[int | None, typer.Option(min=1, help="Tuning runs of each loss; default: the study's.")]
TunedIn = Annotated[
    Path | None, typer.Option(help="Folder of another study: take its tuned options instead of tuning here.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at once, a process each; default: one for each core.")]


def experiment(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME", help="losses, ablation, sweeps, modalities, experts, positives, fitting; several may do."
        ),
    ],
    data: Data,
    out: Out,
    set_: Set = None,
    seeds: Seeds = None,
    trials: Trials = None,
    tuned_in: TunedIn = None,
    jobs: Jobs = None,
) -> None:
    """Run an experiment of the paper: tune on validation, train every seed, write the tables.

    Only what is missing is run: after an interruption, or with another experiment in the same folder, finished runs are
    taken as they are. Tables are printed and lie as CSV and LaTeX in OUT/tables.

    Examples:
        crossclr experiment losses --data emoji --out studies/emoji

        crossclr experiment ablation sweeps --data msvd --out studies/msvd --seeds 0,1,2

        crossclr experiment losses --data my-config.yaml --out studies/mine --trials 20 --set training.epochs=30
    """
    from rich.console import Console

    from crossclr.analysis import EXPERIMENTS, open_study, run_experiments
    from crossclr.training import Interrupted

    console = Console()
    study = open_study(data, out, set_ or [], seed_numbers(seeds), trials, tuned_in)
    try:
        found = run_experiments(names, study, jobs or os.cpu_count() or 1, console)
    except Interrupted:
        console.print("stopped; the same command goes on where it was", highlight=False)
        raise typer.Exit(130) from None
    for name, tables in found.items():
        if not tables:
            console.print(f"{name}: nothing to show, {EXPERIMENTS[name].skip(study)}", highlight=False)
        for table in tables:
            console.print(*table.rich())
            console.print(table.caption, highlight=False, style="dim")
    console.print(f"tables: {study.out / 'tables'}", highlight=False, markup=False, soft_wrap=True)


def report(
    data: Data,
    out: Out,
    set_: Set = None,
    seeds: Seeds = None,
    trials: Trials = None,
    tuned_in: TunedIn = None,
    jobs: Jobs = None,
) -> None:
    """Run every experiment that is missing, draw every figure, and write one HTML file that needs nothing else.

    Examples:
        crossclr report --data emoji --out studies/emoji

        crossclr report --data msvd --out studies/msvd --seeds 0,1,2,3,4
    """
    from rich.console import Console

    from crossclr.analysis import open_study
    from crossclr.analysis.report.write import write_report
    from crossclr.training import Interrupted

    console = Console()
    study = open_study(data, out, set_ or [], seed_numbers(seeds), trials, tuned_in)
    try:
        path = write_report(study, jobs or os.cpu_count() or 1, console)
    except Interrupted:
        console.print("stopped; the same command goes on where it was", highlight=False)
        raise typer.Exit(130) from None
    console.print(f"report: {path}", highlight=False, markup=False, soft_wrap=True)


def seed_numbers(text: str | None) -> list[int] | None:
    """The numbers of ``--seeds 0,1,2``; None where the option was not given."""
    if text is None:
        return None
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds wants numbers with commas, as 0,1,2, got {text!r}") from None
    if len(set(found)) != len(found):
        raise ValueError(f"--seeds wants different numbers, got {text!r}")
    return found
