"""`crossclr index`: build and change the index of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from crossclr.cli.options import Device, Media, RunFolder, progress_bar, say

if TYPE_CHECKING:
    from rich.console import Console

    from crossclr.search.create import Changes


def index(
    run: RunFolder,
    splits: Annotated[
        str | None, typer.Option(help="Splits to index, such as train,test. Default: those of the config.")
    ] = None,
    shards: Annotated[
        list[str] | None,
        typer.Option(help="Index shards of embeddings (see crossclr embed) instead of the run's data. Repeatable."),
    ] = None,
    modalities: Annotated[
        str | None, typer.Option(help="Modalities to index, such as text,video. Default: all that the data has.")
    ] = None,
    media: Media = None,
    update: Annotated[
        bool, typer.Option("--update", help="Add or replace the items of --splits and keep everything else.")
    ] = False,
    add: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Add the recordings of a folder, without training.")
    ] = None,
    segments: Annotated[
        str | None, typer.Option(help="Cut what --add adds: scenes, or windows=10s/5s. Default: one item per file.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep adding as files arrive, until Ctrl-C.")] = False,
    delete: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Delete an item, or all items of a clip. Repeatable.")
    ] = None,
    backend: Annotated[
        Literal["faiss", "milvus"], typer.Option(help="Store vectors in files (faiss) or on a Milvus server.")
    ] = "faiss",
    uri: Annotated[str | None, typer.Option(help="Address of the Milvus server, or a file that ends in .db.")] = None,
    device: Device = "cpu",
) -> None:
    """Build the index that `crossclr search` and `crossclr serve` use.

    The index is stored in the run folder. An existing index stays in use until the new one is complete.

    Examples:
        crossclr index runs/emoji

        crossclr index runs/youcook2 --splits val --media /data/youcook2/videos

        crossclr index runs/youcook2 --update --splits train

        crossclr index runs/emoji --delete image/1F34E@noto

        crossclr index runs/web --shards embeddings

        crossclr index runs/mine --add new-films --segments windows=10s/5s --watch
    """
    from rich.console import Console

    from crossclr.search import build_index, update_index

    chosen = _listed(splits)
    if update and not chosen:
        raise ValueError("--update needs --splits, the splits to add or replace")
    if delete and chosen and not update:
        raise ValueError("--delete takes no --splits; add --update to also add or replace the items of splits")
    console = Console()
    if add is not None:
        _add_folder(run, add, segments, watch, console)
        return
    if watch or segments:
        raise ValueError("--watch and --segments need --add FOLDER")
    with progress_bar(console) as show:
        if update or delete:
            changed = chosen if update and chosen else []
            changes = update_index(run, splits=changed, delete=delete or [], media=media, device=device, progress=show)
            _report_changes(changes, console)
        else:
            build_index(
                run,
                splits=chosen,
                shards=shards,
                modalities=_listed(modalities),
                media=media,
                backend=backend,
                uri=uri,
                device=device,
                progress=show,
            )
    _report_index(run, console)


def _report_index(run: Path, console: Console) -> None:
    from crossclr.search import Searcher

    searcher = Searcher.open(run, text=False)
    parts = [f"{about['count']:,} {about['label']} ({about['kind']})" for about in searcher.meta["modalities"].values()]
    searcher.close()
    say(console, f"indexed {', '.join(parts)} in {run / 'index'}")
    say(console, f'search: crossclr search {run} "..."   or open the page: crossclr serve {run}')


def _add_folder(run: Path, folder: Path, segments: str | None, watch: bool, console: Console) -> None:
    from crossclr.search.folders import add_folder, watch_folder

    with progress_bar(console) as show:
        one_by_one = watch_folder(run, folder, segments=segments, progress=show) if watch else None
        for changes in one_by_one or [add_folder(run, folder, segments=segments, progress=show)]:
            _report_changes(changes, console)
    _report_index(run, console)


def _report_changes(changes: Changes, console: Console) -> None:
    from crossclr.cli.extract import show_problems

    if changes.omitted is not None:
        show_problems(changes.omitted, console)
    say(console, f"{changes.added} added, {changes.replaced} replaced, {changes.deleted} deleted")


def _listed(names: str | None) -> list[str] | None:
    return [part.strip() for part in names.split(",")] if names else None
