"""`crossclr study`: the paper's tables and figures, on any data or with the paper's own settings."""

import os
from pathlib import Path
from typing import Annotated

import typer

from crossclr.cli.options import Jobs, Seeds, Set, parse_seeds, resumable
from crossclr.cli.reproduce import reproduce
from crossclr.extras import requires_extra

app = typer.Typer(no_args_is_help=True, help="Compare losses on your data, or reproduce the paper.")

Study = Annotated[
    str, typer.Option(help="A shipped study (emoji, msvd, youcook2-spoken), or a YAML file of a study or a run config.")
]
Out = Annotated[
    Path, typer.Option(help="Folder for trainings, tuning, tables and report. The same command resumes there.")
]
Trials = Annotated[
    int | None, typer.Option(min=0, help="Tuning runs for each loss; 0 tunes nothing; default: those of the study.")
]
TunedIn = Annotated[Path | None, typer.Option(help="Folder of another study: use its tuned options, tune nothing.")]


@app.command()
def run(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="losses, ablation, sweeps, modalities, experts, positives: one or more."
        ),
    ],
    study: Study,
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
        crossclr study run losses --study emoji --out studies/emoji

        crossclr study run ablation sweeps --study msvd --out studies/msvd --seeds 0,1,2

        crossclr study run losses --study my-config.yaml --out studies/mine --trials 20 --set training.epochs=30
    """
    from rich.console import Console

    from crossclr.studies import open_study, run_experiments
    from crossclr.studies.experiments import EXPERIMENTS

    console = Console()
    opened = open_study(study, out, set_ or [], parse_seeds(seeds), trials, tuned_in)
    with resumable():
        found = run_experiments(names, opened, jobs or os.cpu_count() or 1, console)
    for name, tables in found.items():
        if not tables:
            console.print(f"{name}: skipped, {EXPERIMENTS[name].skip(opened)}", highlight=False)
        for table in tables:
            console.print(*table.rich())
            console.print(table.caption, "", highlight=False, style="dim")
    typer.echo(f"tables: {opened.out / 'tables'}")


@app.command()
def report(
    study: Study,
    out: Out,
    set_: Set = None,
    seeds: Seeds = None,
    trials: Trials = None,
    tuned_in: TunedIn = None,
    jobs: Jobs = None,
) -> None:
    """Run all experiments that are missing and write one self-contained HTML report.

    Examples:
        crossclr study report --study emoji --out studies/emoji

        crossclr study report --study msvd --out studies/msvd --seeds 0,1,2,3,4
    """
    from rich.console import Console

    from crossclr.studies import open_study
    from crossclr.studies.report import write_report

    with requires_extra("report", "The report"):  # before hours of training, not after them
        import optuna  # noqa: F401
        import plotly.offline  # noqa: F401
    opened = open_study(study, out, set_ or [], parse_seeds(seeds), trials, tuned_in)
    with resumable():
        path = write_report(opened, jobs or os.cpu_count() or 1, Console())
    typer.echo(f"report: {path}")


app.command("reproduce")(reproduce)
