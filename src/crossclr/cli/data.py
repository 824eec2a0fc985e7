"""`crossclr data`: check a data set, and compute text features for it."""

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
from crossclr.storage.reading import read_json

app = typer.Typer(help="Check a data set before training; compute text features.", no_args_is_help=True)

CLEAN, FAULTY, UNREADABLE = 0, 1, 2
SHOWN = 20  # findings of each level shown in the terminal; --json has all


@app.command("check")
def check_command(
    data: Annotated[
        str,
        typer.Argument(
            help="A data or run config (YAML), a shipped config's name, a run folder, or a folder in COOT's layout.",
            show_default=False,
        ),
    ],
    root: Annotated[str | None, typer.Option(help="Folder that the config's relative paths start from.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Check only the first N samples of each split.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Count warnings as faults.")] = False,
    as_json: Json = False,
) -> None:
    """Validate and describe a data set before any training.

    Reports counts, lengths, splits and leaks between them, missing keys, NaN, empty clips, duplicates, samples that
    lack an expert, and connectivity: the share of samples that each pruning threshold would prune.

    Exit code: 0 clean, 1 faults (each with its file and key), 2 the data cannot be read at all.

    Examples:
        crossclr data check emoji

        crossclr data check my-data.yaml --json > report.json

        crossclr data check msvd --root ~/data/msvd --strict
    """
    from crossclr.progress_bar import show_progress

    try:
        with show_progress("checking") as progress:
            report = check_data(find_data_config(data, root), limit=limit, progress=progress)
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


@app.command("text")
def text_command(
    captions: Annotated[
        Path, typer.Argument(help="meta_all.json (COOT's layout), or JSON clip id -> {captions: [...]}.", exists=True)
    ],
    out: Annotated[Path, typer.Argument(help="The .h5 file (for a meta file) or the folder (for captions) to write.")],
    expert: Annotated[
        str, typer.Option(help="Text expert: text (MiniLM), or bert-paper (BERT from the hub) for a meta file.")
    ] = "text",
) -> None:
    """Compute token features of the sentences of a data set.

    For a meta file (data of kind coot), writes OUT.h5 and OUT_sentence_splits.json. For a captions file (data of kind
    arrays), writes a folder with values.npy, lengths.npy, owners.json and texts.json. Needs crossclr[experts].

    Examples:
        crossclr data text youcook2/meta_all.json youcook2/text_feat_minilm.h5

        crossclr data text youcook2/meta_all.json youcook2/text_feat_bert.h5 --expert bert-paper

        crossclr data text msvd/captions.json msvd/text_minilm
    """
    from crossclr.extract import TokenExpert, load
    from crossclr.extract.token_features import write_token_features_captions, write_token_features_coot

    if _is_meta(captions):
        encoder = None if expert == "text" else load(expert)
        if not isinstance(encoder, TokenExpert | None):
            raise typer.BadParameter(f"{expert} is no expert for text; crossclr extract --list shows all experts")
        out = out if out.suffix == ".h5" else out.with_name(f"{out.name}.h5")
        long_texts = write_token_features_coot(captions, out, encoder)
    elif expert != "text":
        raise typer.BadParameter(f"{expert} encodes the paragraphs of a meta file; {captions} is a captions file")
    else:
        long_texts = write_token_features_captions(captions, out)
    if long_texts and long_texts.count:
        typer.echo(str(long_texts))
    typer.echo(f"wrote {out}")


def find_data_config(data: str, root: str | None = None) -> AnyData:
    """The config of a YAML file, shipped config, run folder, or folder in COOT's layout; ``root`` replaces its own."""
    path = Path(data).expanduser()
    config: AnyData
    if (path / "config.yaml").is_file():
        config = load_data_config(path / "config.yaml")
    elif path.is_dir():
        config = guess_data_config(path)
    elif path.is_file():
        config = load_data_config(path)
    else:
        from crossclr.training.config_files import load_config

        config = load_config(data).data
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


def _is_meta(path: Path) -> bool:
    content = read_json(path)
    first = next(iter(content.values()), None) if isinstance(content, dict) else None
    return isinstance(first, dict) and "segments" in first


def _plain(message: str) -> str:
    return message.replace("[", "\\[")  # rich would read brackets as markup


def _table(title: str, *heads: str) -> Table:
    """A table whose names may be broken over lines, so that nothing is cut off."""
    table = Table(title=title)
    for head in heads:
        table.add_column(head, overflow="fold")
    return table
