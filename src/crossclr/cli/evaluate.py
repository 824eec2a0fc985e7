"""`crossclr evaluate` and `crossclr embed`: the retrieval metrics of a run, and its embeddings as a file."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from crossclr.cli.options import Checkpoint, Device, Force, Json, RunFolder

Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders; several are also fused (⊕).")]
Split = Annotated[str | None, typer.Option(help="Split to use; default: the test split of the run's config.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Samples embedded at once.")]


def evaluate(
    runs: Runs,
    split: Split = None,
    checkpoint: Checkpoint = "best",
    baseline: Annotated[bool, typer.Option("--baseline/--no-baseline", help="Also measure the CCA baseline.")] = True,
    semantics: Annotated[
        bool,
        typer.Option(
            "--semantics/--no-semantics", help="Also measure nDCG, shared-caption recall and neighbours kept."
        ),
    ] = True,
    fused: Annotated[
        list[str] | None,
        typer.Option(help="Also search fused modalities, such as 'text->video+sound'. Default: all others and back."),
    ] = None,
    trec: Annotated[
        Path | None, typer.Option(help="Also write TREC's run and qrels files of each run and direction here.")
    ] = None,
    as_json: Json = False,
    batch_size: BatchSize = 64,
    device: Device = "cpu",
) -> None:
    """Measure the retrieval of one or more runs, in every direction and at every level.

    R@K is the percentage of queries whose target is among the first K; MdR and MnR are median and mean rank (1 is
    best). Several runs are measured one by one and fused: their normalised embeddings are concatenated (the paper's ⊕).

    If the data has texts, nDCG grades clips by the words of their captions, and sR@K accepts every clip that shares a
    caption with the query's clip.

    Examples:
        crossclr evaluate runs/emoji

        crossclr evaluate runs/msvd/seed-0 runs/msvd/seed-1 --split test

        crossclr evaluate runs/emoji --no-baseline --json > result.json

        crossclr evaluate runs/emoji --trec trec
    """
    from crossclr.evaluation.evaluate import evaluate_runs

    evaluation = evaluate_runs(
        runs,
        split=split,
        which=checkpoint,
        baseline=baseline,
        semantics=semantics,
        fused=fused or None,
        batch_size=batch_size,
        device=device,
        progress=True,
    )
    if trec is not None:
        from crossclr.evaluation.evaluate import embed_run
        from crossclr.integrations.trec import write_trec

        for run, name in zip(runs, evaluation.runs, strict=True):
            embeddings = embed_run(run, split=split, which=checkpoint, batch_size=batch_size, device=device)
            write_trec(embeddings, trec / Path(name).name if len(runs) > 1 else trec)
    if as_json:
        typer.echo(json.dumps(asdict(evaluation), indent=2))
    else:
        console = Console()
        for table in evaluation.tables():
            console.print(table, "")


def embed(
    run: RunFolder,
    out: Annotated[
        Path, typer.Option(help="What to write: .h5 (COOT's layout), .npz, or a folder: .parquet, or shards.")
    ],
    split: Split = None,
    checkpoint: Checkpoint = "best",
    batch_size: BatchSize = 64,
    device: Device = "cpu",
    shards: Annotated[
        list[str] | None,
        typer.Option(help="Shards to embed: Parquet or HDF5 files, patterns or folders. Repeatable."),
    ] = None,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Embed shards in this process or on a Ray cluster.")
    ] = "local",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Ray: shards embedded at the same time; default: all CPUs.")
    ] = None,
    force: Force = False,
    address: Annotated[
        str | None, typer.Option(help="Ray: address of a running cluster, or auto; default: start one here.")
    ] = None,
) -> None:
    """Write the embeddings of a split to a file, raw and normalised, with their keys.

    Shards of features become Parquet shards of embeddings with the columns id, a and b. Existing shards are skipped, so
    the same command resumes. Without --shards, the shards of the run's own data are embedded.

    Examples:
        crossclr embed runs/emoji --out emoji.npz

        crossclr embed runs/youcook2 --split val --out youcook2_val.h5

        crossclr embed runs/emoji --out emoji.parquet

        crossclr embed runs/web --shards 'features/*.parquet' --out embeddings --engine ray --jobs 8
    """
    from crossclr.evaluation.embedding_files import is_hdf5, save_embeddings
    from crossclr.evaluation.evaluate import embed_run
    from crossclr.storage import check_free

    if shards or engine == "ray" or not out.suffix:
        options = {"engine": engine, "workers": jobs, "address": address}
        _embed_shards(run, out, split, shards, which=checkpoint, batch_size=batch_size, device=device, **options)
        return
    parquet = out.suffix == ".parquet"
    if not parquet:
        is_hdf5(out)  # report a wrong ending before the work
    check_free(out, force)
    embeddings = embed_run(run, split=split, which=checkpoint, batch_size=batch_size, device=device, progress=True)
    if parquet:
        from crossclr.integrations.trec import write_parquet

        write_parquet(embeddings, out)
    else:
        save_embeddings(embeddings, out)
    typer.echo(
        f"{out}: {len(embeddings.video_keys)} videos, {len(embeddings.clip_keys)} clips; "
        + ", ".join(f"{name}: {len(vectors.rows)}" for name, vectors in embeddings.modalities.items())
    )


def _embed_shards(run: Path, out: Path, split: str | None, shards: list[str] | None, **options: Any) -> None:
    from crossclr.evaluation.bulk import embed_shards
    from crossclr.evaluation.evaluate import default_split
    from crossclr.progress_bar import show_progress
    from crossclr.training import Run

    opened = Run.open(run)
    chosen: list[str | Path] = list(shards or [])
    if not chosen:
        chosen = list(opened.open_data().where(split=split or default_split(opened.config)).shards)
        if not chosen:
            raise ValueError(
                "the data of this run is not in shards; name shards with --shards, or give --out a file ending in "
                ".h5 or .npz"
            )
    with show_progress("embedding shards") as report:
        counts = embed_shards(opened, chosen, out, progress=report, **options)
    typer.echo(
        f"{out}: {counts['samples']:,} samples in {counts['shards']:,} shards; {counts['embedded']:,} were embedded now"
    )
