"""`crossclr experiment` and `crossclr report`: the paper's tables and figures on any data."""

import os
from pathlib import Path
from typing import Annotated

import typer

from crossclr.cli.options import Jobs, parse_seeds, resumable
from crossclr.extras import requires_extra

Data = Annotated[
    str, typer.Option(help="A shipped study (emoji, msvd, youcook2-spoken), or a YAML file of a study or a run config.")
]
Out = Annotated[
    Path, typer.Option(help="Folder for trainings, tuning, tables and report. The same command resumes there.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the config of every training; repeatable."),
]
Seeds = Annotated[str | None, typer.Option(help="Seeds, such as 0,1,2; default: those of the study.")]
Trials = Annotated[
    int | None, typer.Option(min=0, help="Tuning runs for each loss; 0 tunes nothing; default: those of the study.")
]
TunedIn = Annotated[Path | None, typer.Option(help="Folder of another study: use its tuned options, tune nothing.")]


def experiment(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME", help="losses, ablation, sweeps, modalities, experts, positives: one or more; or default."
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
    """Run experiments of the paper: tune on validation, train every seed, write the tables.

    Finished trainings are never repeated, so the same command resumes after an interruption, and experiments in one
    folder share trainings. Tables are printed, and written to OUT/tables as CSV and LaTeX.

    Examples:
        crossclr experiment losses --data emoji --out studies/emoji

        crossclr experiment ablation sweeps --data msvd --out studies/msvd --seeds 0,1,2

        crossclr experiment default --data FOLDER --out studies/default

        crossclr experiment losses --data my-config.yaml --out studies/mine --trials 20 --set training.epochs=30
    """
    from rich.console import Console

    from crossclr.studies import open_study, run_experiments
    from crossclr.studies.experiments import EXPERIMENTS

    console = Console()
    if names == ["default"]:
        from crossclr.protocol import run_default

        with resumable():
            for table in run_default(data, out, draws=16 if trials is None else trials, report=console.print):
                console.print(*table.rich())
                console.print(table.caption, "", highlight=False, style="dim")
        return
    study = open_study(data, out, set_ or [], given_seeds(seeds), trials, tuned_in)
    with resumable():
        found = run_experiments(names, study, jobs or os.cpu_count() or 1, console)
    for name, tables in found.items():
        if not tables:
            console.print(f"{name}: skipped, {EXPERIMENTS[name].skip(study)}", highlight=False)
        for table in tables:
            console.print(*table.rich())
            console.print(table.caption, "", highlight=False, style="dim")
    typer.echo(f"tables: {study.out / 'tables'}")


def report(
    data: Data,
    out: Out,
    set_: Set = None,
    seeds: Seeds = None,
    trials: Trials = None,
    tuned_in: TunedIn = None,
    jobs: Jobs = None,
) -> None:
    """Run all experiments that are missing and write one self-contained HTML report.

    Examples:
        crossclr report --data emoji --out studies/emoji

        crossclr report --data msvd --out studies/msvd --seeds 0,1,2,3,4
    """
    from rich.console import Console

    from crossclr.studies import open_study
    from crossclr.studies.report import write_report

    with requires_extra("report", "The report"):  # before hours of training, not after them
        import optuna  # noqa: F401
        import plotly.offline  # noqa: F401
    study = open_study(data, out, set_ or [], given_seeds(seeds), trials, tuned_in)
    with resumable():
        path = write_report(study, jobs or os.cpu_count() or 1, Console())
    typer.echo(f"report: {path}")


def given_seeds(text: str | None) -> list[int] | None:
    """The numbers of ``--seeds``; None if the option is absent."""
    return None if text is None else parse_seeds(text)
