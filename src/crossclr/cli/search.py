"""`crossclr index`, `search`, `serve` and `export`: find clips with a trained run."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]


class Backend(StrEnum):
    """Where vectors live."""

    faiss = "faiss"
    milvus = "milvus"


class Modality(StrEnum):
    """What is found."""

    a = "a"
    b = "b"


def index(
    run: RunFolder,
    splits: Annotated[str | None, typer.Option(help="Splits to index, as train,test; default: the config's.")] = None,
    shards: Annotated[
        list[str] | None,
        typer.Option(help="Index these shards of embeddings (see crossclr embed), not the run's data; several times."),
    ] = None,
    modalities: Annotated[
        str | None, typer.Option(help="Modalities to index: a, b or a,b; default: both, or what the shards have.")
    ] = None,
    media: Annotated[
        Path | None, typer.Option(help="Folder of pictures, videos or sounds named like the samples, or a JSON table.")
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Add or replace the splits; keep everything else.")] = False,
    delete: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Delete an item or all items of a clip; several times.")
    ] = None,
    hubness: Annotated[bool, typer.Option("--hubness", help="Correct scores against hubs of this index.")] = False,
    backend: Annotated[Backend, typer.Option(help="faiss inside the process, or a Milvus server.")] = Backend.faiss,
    uri: Annotated[str | None, typer.Option(help="Milvus: address of the server, or a file ending in .db.")] = None,
    device: Annotated[str, typer.Option(help="Where to embed: cpu, cuda, cuda:1, mps.")] = "cpu",
) -> None:
    """Build the index that `crossclr search` and `crossclr serve` use, beside the run.

    The index before it stays in use until the new one is complete, whatever happens.

    Examples:
        crossclr index runs/emoji

        crossclr index runs/youcook2 --splits val --media /data/youcook2/videos

        crossclr index runs/youcook2 --update --splits train

        crossclr index runs/emoji --delete a/1F34E@noto

        crossclr index runs/web --shards embeddings
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from crossclr.search import Searcher, build_index, update_index

    chosen = [part.strip() for part in splits.split(",")] if splits else None
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("opening the data", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        if update or delete:
            if update and not chosen:
                raise ValueError("--update needs --splits: which splits shall be added or replaced?")
            counts = update_index(
                run,
                splits=chosen or [] if update else [],
                delete=delete or [],
                media=media,
                device=device,
                progress=show,
            )
            console.print(", ".join(f"{count} {what}" for what, count in counts.items()), highlight=False)
        else:
            build_index(
                run,
                splits=chosen,
                shards=shards,
                modalities=[part.strip() for part in modalities.split(",")] if modalities else None,
                media=media,
                backend=backend.value,
                uri=uri,
                hubness=hubness,
                device=device,
                progress=show,
            )
    searcher = Searcher.open(run, text=False)
    parts = [f"{about['count']:,} {about['label']} ({about['kind']})" for about in searcher.meta["modalities"].values()]
    searcher.close()
    console.print(f"index of {', '.join(parts)}: {run / 'index'}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f'search it: crossclr search {run} "..."   or open the page: crossclr serve {run}',
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def search(
    run: RunFolder,
    sentence: Annotated[str | None, typer.Argument(help="What you are looking for.")] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many results.")] = 10,
    like: Annotated[
        str | None, typer.Option(metavar="ID", help="Neighbours of this item instead of a sentence.")
    ] = None,
    find: Annotated[Modality | None, typer.Option(help="Modality of the results; default: not the query's.")] = None,
    split: Annotated[list[str] | None, typer.Option(help="Only this split; several times.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Only this group; several times.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Find clips by a sentence, or the neighbours of an item in either modality.

    Examples:
        crossclr search runs/emoji "red fruit"

        crossclr search runs/emoji --like a/1F34E@noto --find a --top 5

        crossclr search runs/youcook2 "cut the tomato" --split val --json
    """
    from crossclr.search import Searcher

    if (sentence is None) == (like is None):
        raise ValueError("give a sentence, or an item with --like ID (one of the two)")
    searcher = Searcher.open(run, text=sentence is not None)
    try:
        hits = searcher.search(
            text=sentence,
            like=like,
            find=None if find is None else find.value,
            top=top,
            splits=split or (),
            groups=group or (),
        )
    except KeyError as error:
        raise ValueError(f"{error.args[0]}; names look like {_example(searcher)}") from None
    if as_json:
        typer.echo(json.dumps([_plain(hit) for hit in hits], indent=2, ensure_ascii=False))
        return
    _print_hits(hits)


def serve(
    run: RunFolder,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
) -> None:
    """Start the search service and its page; the index is built first where there is none.

    Examples:
        crossclr serve runs/emoji

        crossclr serve runs/emoji --port 8080
    """
    from rich.console import Console

    from crossclr.search.building.create import INDEX
    from crossclr.search.index.generations import current_generation
    from crossclr.search.service.server import serve_run
    from crossclr.training import Run

    opened = Run.open(run)
    if current_generation(opened.path / INDEX) is None:
        index(run)
    console = Console()

    def ready(address: str) -> None:
        console.print(f"open {address} in a browser; Ctrl-C ends the service", highlight=False, markup=False)

    serve_run(opened, host=host, port=port, ready=ready)


def export(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default: onnx in the run folder.")] = None,
) -> None:
    """Write both encoders as ONNX, check them against PyTorch, and search with onnxruntime alone.

    Examples:
        crossclr export runs/emoji

        crossclr export runs/emoji --out encoders
    """
    from crossclr.search.encoders.onnx_export import export_run

    report = export_run(run, out)
    typer.echo(json.dumps(report, indent=2))


def _plain(hit: Any) -> dict[str, Any]:
    from crossclr.search.service.answers import plain_hit

    return plain_hit(hit)


def _example(searcher: Any) -> str:
    rows = searcher.items.columns("name")
    return repr(rows[0][0]) if rows else "a/KEY"


def _print_hits(hits: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from crossclr.features.sources.emoji import is_built_in

    if not hits:
        typer.echo("nothing was found; the filters let no item pass")
        return
    table = Table()
    table.add_column("score", justify="right")
    table.add_column("id", no_wrap=True)
    table.add_column("text", overflow="fold")
    files = any(hit.item.media and not is_built_in(hit.item.file) for hit in hits)
    if files:
        table.add_column("file", overflow="fold")
        table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("split")
    for hit in hits:
        item = hit.item
        row: list[str | Text] = [f"{hit.score:.3f}", Text(item.name), Text(item.text)]
        if files:
            span = "" if item.start is None else f"{item.start:.1f}–{item.stop or item.start:.1f}"
            row += [Text(item.file), span]
        table.add_row(*row, item.split)
    Console().print(table)
