"""`crossclr check`: a config and its data before training, or the files of a run or an index."""

import json
from itertools import combinations
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from crossclr.cli.options import Json
from crossclr.data import check_data, load_data_config
from crossclr.data.coot import guess_data_config
from crossclr.data.kinds import AnyData
from crossclr.data.report import DataReport, SplitSummary
from crossclr.errors import DataError
from crossclr.storage.yaml_files import read_yaml
from crossclr.training.config_files import load_config

CLEAN, FAULTY, UNREADABLE = 0, 1, 2
SHOWN = 20  # findings of each level shown in the terminal; --json has all


def check(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A config (YAML file or shipped name), a folder of features in COOT's layout, a run folder, an index, "
            "or a folder of runs.",
        ),
    ],
    config_only: Annotated[bool, typer.Option("--config-only", help="Check a config without its data.")] = False,
    root: Annotated[str | None, typer.Option(help="Folder that the config's relative paths start from.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Check only the first N samples of each split.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Count warnings as faults.")] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Record the current files of a run or an index as correct.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a config and its data before training, or a run folder for damage.

    For data: counts, lengths, splits and leaks between them, missing keys, NaN, empty clips, duplicates, and how many
    samples each pruning threshold would prune. For a run, an index or an export: every file against its checksum, and
    the data of a run against the fingerprint that the run stored.

    Exit code: 0 clean, 1 problems found (each with its file and key), 2 the path cannot be read at all.

    Examples:
        crossclr check emoji

        crossclr check my-config.yaml --json > report.json

        crossclr check msvd --root ~/data/msvd --strict

        crossclr check runs/first --accept
    """
    from crossclr.storage.manifest import sealed_folders

    folder = Path(path).expanduser()
    if accept or (folder.is_dir() and not (folder / "meta_all.json").is_file() and sealed_folders(folder)):
        _check_files(folder, accept, as_json)
    else:
        _check_data(path, root, limit, strict, config_only, as_json)


def _check_files(folder: Path, accept: bool, as_json: bool) -> None:
    from crossclr.training.run import verify

    verified = verify(folder, accept=accept)
    differences = verified.differences
    if as_json:
        typer.echo(
            json.dumps({"ok": not differences, "folders": verified.folders, "differences": differences}, indent=2)
        )
    else:
        typer.echo("\n".join(differences), nl=bool(differences))
        verb = "accepted" if accept else "found"
        typer.echo(f"{folder}: {verified.folders} folders checked, {len(differences)} differences {verb}")
    raise typer.Exit(FAULTY if differences and not accept else CLEAN)


def _check_data(path: str, root: str | None, limit: int | None, strict: bool, config_only: bool, as_json: bool) -> None:
    from crossclr.progress_bar import show_progress

    try:
        config = find_data_config(path, root)
        if config_only:
            typer.echo(json.dumps({"ok": True}) if as_json else f"{path}: valid")
            return
        with show_progress("checking") as progress:
            report = check_data(config, limit=limit, progress=progress)
    except (ValueError, OSError) as error:  # DataError and the errors of a config are ValueErrors
        if as_json:
            typer.echo(json.dumps({"ok": False, "error": str(error)}))
        typer.echo(f"cannot be read: {error}", err=True)
        raise typer.Exit(UNREADABLE) from error
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
    else:
        show_report(report, Console())
    raise typer.Exit(FAULTY if report.faults or (strict and report.warnings) else CLEAN)


def find_data_config(data: str, root: str | None = None) -> AnyData:
    """The config of a YAML file, shipped config, run folder, or folder in COOT's layout; ``root`` replaces its own."""
    path = Path(data).expanduser()
    config: AnyData
    if path.is_dir() and not (path / "config.yaml").is_file():
        config = guess_data_config(path)
    else:
        path = path / "config.yaml" if path.is_dir() else path
        values = read_yaml(path, DataError) if path.is_file() else {"data": data}
        if isinstance(values, dict) and "data" in values:  # a run config, or the name of a shipped one
            config = load_config(path if path.is_file() else data).data
        else:
            config = load_data_config(path)
    return config if root is None else config.with_root(Path(root).expanduser().resolve())


def show_report(report: DataReport, console: Console) -> None:
    """Print a report to the terminal."""
    level = "two levels" if report.two_level else "one level"
    dims = ", ".join(f"{name} {dim}" for name, dim in report.dims.items())
    console.print(f"channels: {dims}; {level}")
    splits = _table("Splits: clips that have each modality", "split", "samples", "clips", *report.dims)
    names = [f"{x} + {y}" for x, y in combinations(report.dims, 2)]
    pairs = _table("Pairs: clips that have both", "split", *names)
    lengths = _table("Rows", "split", "sequence", "least", "median", "mean", "most", "over the limit")
    for name, split in report.splits.items():
        shown = [_presence(split, modality) for modality in report.dims]
        splits.add_row(name, f"{split.samples:,}", f"{split.clips:,}", *shown)
        pairs.add_row(name, *(f"{split.present.get(pair, 0):,}" for pair in names))
        for kind, rows in split.lengths.items():
            over = f"{rows.over_limit / rows.count:.1%}" if rows.over_limit else "-"
            lengths.add_row(name, kind, str(rows.least), f"{rows.median:g}", f"{rows.mean:.1f}", str(rows.most), over)
    console.print(splits, pairs, lengths)
    for kind, summary in report.connectivity.items():
        quantiles = ", ".join(f"{share:.0%} {value:.3f}" for share, value in summary.quantiles.items())
        title = f"Connectivity of {kind} (split {report.connectivity_split}, {summary.count:,})\n{quantiles}"
        table = _table(title, "threshold", "pruned: relative", "absolute", "quantile")
        for threshold in summary.relative:
            shares = [rule[threshold] for rule in (summary.relative, summary.absolute, summary.quantile)]
            table.add_row(f"{threshold:g}", *(f"{share:.1%}" for share in shares))
        console.print(table)
    for title, findings in (("warning", report.warnings), ("fault", report.faults)):
        for finding in findings[:SHOWN]:
            colour = "red" if title == "fault" else "yellow"
            console.print(
                f"[bold {colour}]{title}[/] {finding.kind}: {_plain(finding.message)}", highlight=False, soft_wrap=True
            )
        if len(findings) > SHOWN:
            console.print(f"... and {len(findings) - SHOWN:,} more {title}s; --json lists all")
    console.print(f"{len(report.faults):,} faults, {len(report.warnings):,} warnings", highlight=False)


def _presence(split: SplitSummary, modality: str) -> str:
    """How many clips have a modality, and the number of sequences where it is larger."""
    clips, sequences = split.present.get(modality, 0), split.sequences.get(modality, 0)
    return f"{clips:,}" if clips == sequences else f"{clips:,} ({sequences:,} rows)"


def _plain(message: str) -> str:
    return message.replace("[", "\\[")  # rich would read brackets as markup


def _table(title: str, *heads: str) -> Table:
    """A table whose names may be broken over lines, so that nothing is cut off."""
    table = Table(title=title)
    for head in heads:
        table.add_column(head, overflow="fold")
    return table
