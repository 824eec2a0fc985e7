"""`crossclr search`, `serve` and `export`: find clips with a trained run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from crossclr.cli.index import index
from crossclr.cli.options import Host, Json, Port, RunFolder, say

if TYPE_CHECKING:
    from crossclr.search import Hit, Searcher
    from crossclr.search.items import Item
    from crossclr.search.query import Query
    from crossclr.search.query_encoders import FileQuery

PARTS = {"train": "training data", "val": "validation data", "test": "test data", "added": "added files"}


def search(
    run: RunFolder,
    sentence: Annotated[str | None, typer.Argument(help="What you are looking for.")] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Number of results.")] = 10,
    like: Annotated[
        str | None, typer.Option(metavar="ID", help="Find items similar to this one instead of a sentence.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Find items similar to this image, video or sound; its first 60 s are used.")
    ] = None,
    more: Annotated[list[str] | None, typer.Option(metavar="ID", help="Find more like this item. Repeatable.")] = None,
    less: Annotated[list[str] | None, typer.Option(metavar="ID", help="Find less like this item. Repeatable.")] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART=NUMBER",
            help="How much a part of the query counts, 0 to 100: text, file, more (with --like) or less, such as "
            "text=0.5. Default: text=1, file=1, more=1.25, less=0.25. Repeatable.",
        ),
    ] = None,
    text_modality: Annotated[
        str | None, typer.Option(help="Modality that encodes the sentence. Default: text, or the first of text.")
    ] = None,
    find: Annotated[
        str | None,
        typer.Option(
            help="Modality of the results; all; fused or video+text: whole samples. Default: not the query's."
        ),
    ] = None,
    split: Annotated[list[str] | None, typer.Option(help="Only items of this split. Repeatable.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Only items of this group. Repeatable.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Only items with this duration, date or column of the captions; 10..20 is a range. Repeatable.",
        ),
    ] = None,
    min_probability: Annotated[
        float, typer.Option(min=0, max=1, help="Only results that are right with at least this probability.")
    ] = 0.0,
    paths: Annotated[bool, typer.Option("--paths", help="Print only the paths of the files, for pipes.")] = False,
    as_json: Json = False,
) -> None:
    """Find clips by a sentence, a file, items of the index, or several of these.

    Examples:
        crossclr search runs/emoji "red fruit"

        crossclr search runs/emoji --like image/1F34E@noto --find image --top 5

        crossclr search runs/youcook2 "cut the tomato" --split val --json

        crossclr search runs/films "a bridge" --where date=2024-01-01.. --where duration=..30

        crossclr search runs/emoji --file photo.jpg

        crossclr search runs/emoji "at night" --file photo.jpg --weight text=0.5 --less image/1F34E@noto

        crossclr search runs/films "a bridge" --paths --min-probability 0.5
    """
    from crossclr.search.query import Query, Weights, parse_where
    from crossclr.search.results import none_likely, plain_hit

    if sentence is None and like is None and file is None and not more:
        raise ValueError("give a sentence, a file with --file, or an item with --like ID")
    if sentence is not None:
        _refuse_paths(sentence)
    query = Query(
        sentence,
        text_modality,
        like,
        more=more or [],
        less=less or [],
        weights=Weights.parse(weight or []),
        find=find,
        top=top,
        splits=split or [],
        groups=group or [],
        where=parse_where(where or []),
        min_probability=min_probability,
    )
    hits = _answer(run, query, file)
    if none_likely(hits):
        typer.echo("no good match: no result is likely to be right; these are only the nearest items", err=True)
    if as_json:
        typer.echo(json.dumps([plain_hit(hit) for hit in hits], indent=2, ensure_ascii=False))
    elif paths:
        typer.echo("\n".join(dict.fromkeys(filter(None, (_path_of(hit.item) for hit in hits)))))
    else:
        _print_hits(hits)


def _answer(run: Path, query: Query, file: Path | None) -> list[Hit]:
    """The results from a running service, without PyTorch, or with it, whichever is the first that can answer."""
    from crossclr.search.quick_search import ask_running_service, open_without_torch

    hits = ask_running_service(run, query) if file is None else None
    if hits is not None:
        return hits
    searcher = open_without_torch(run, query) if file is None else None
    if searcher is None:
        from crossclr.search import Searcher

        searcher = Searcher.open(run)
    try:
        return searcher.search(query, file=_encoded(searcher, file))
    except KeyError as error:
        raise ValueError(f"{error.args[0]}; names look like {_example(searcher)}") from None


def serve(
    run: RunFolder,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="File with a token that every request must carry. Default: no token.")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Write a JSON line for each request to standard error.")] = False,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Number of processes that answer.")] = 1,
) -> None:
    """Start the search service and its page; build the index first if there is none.

    Examples:
        crossclr serve runs/emoji

        crossclr serve runs/emoji --port 8080

        crossclr serve runs/emoji --host 0.0.0.0 --token-file token.txt --log
    """
    from rich.console import Console

    from crossclr.search import serve_run
    from crossclr.search.index import INDEX, current_generation
    from crossclr.search.service.access import read_token
    from crossclr.training import Run

    token = None if token_file is None else read_token(token_file)
    opened = Run.open(run)
    if current_generation(opened.path / INDEX) is None:
        index(run)
    console = Console()

    def ready(address: str) -> None:
        shown = address if token is None else f"{address}?token=..."
        say(console, f"open {shown} in a browser; Ctrl-C stops the service")

    serve_run(opened, host=host, port=port, ready=ready, token=token, log=log, workers=workers)


def export(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write. Default: the format's name in the run folder.")
    ] = None,
    to: Annotated[
        Literal["onnx", "sentence-transformers"],
        typer.Option(help="Encoders as ONNX files, or a model that SentenceTransformer opens."),
    ] = "onnx",
) -> None:
    """Write the encoders for other programs.

    ONNX encoders are checked against PyTorch and in a search with onnxruntime alone. A model for sentence-transformers
    takes sentences, images, media files and feature rows; it needs crossclr where it is used.

    Examples:
        crossclr export runs/emoji

        crossclr export runs/emoji --out encoders

        crossclr export runs/emoji --to sentence-transformers --out emoji-model
    """
    if to == "onnx":
        from crossclr.search import export_run

        typer.echo(json.dumps(export_run(run, out), indent=2))
        return
    from crossclr.integrations.sentence_transformers import export_sentence_transformer
    from crossclr.training import Run

    path = export_sentence_transformer(Run.open(run), out or run / to)
    typer.echo(f"{path}: open it with SentenceTransformer({str(path)!r}, trust_remote_code=True)")


def _refuse_paths(sentence: str) -> None:
    """Report a path that is given in place of a sentence, which would silently be searched as words."""
    from crossclr.extract.media import media_type

    path = Path(sentence)
    is_path = "\0" not in sentence and len(sentence) < 1000 and path.is_file()
    if is_path or (media_type(path) is not None and " " not in sentence and len(path.parts) > 1):
        raise ValueError(
            f"{sentence!r} looks like a file, but a query is a sentence: search with the file by --file {sentence}, or "
            "describe in words what you are looking for"
        )


def _encoded(searcher: Searcher, file: Path | None) -> FileQuery | None:
    """The vector of a file that is a query."""
    from crossclr.search import QueryError

    if file is None:
        return None
    if searcher.files is None:
        raise QueryError(searcher.no_files)
    with file.open("rb") as opened:
        return searcher.files.encode(opened)


def _example(searcher: Searcher) -> str:
    rows = searcher.items.columns("name")
    return repr(rows[0][0]) if rows else "video/KEY"


def _print_hits(hits: Sequence[Hit]) -> None:
    """Three lines for each result, which only the terminal wraps: names and paths stay in one piece."""
    from rich.console import Console

    if not hits:
        typer.echo("no results: no item passes the filters")
        return
    console = Console()
    for number, hit in enumerate(hits, 1):
        item = hit.item
        timed = item.start is not None and item.media != "image"
        span = f"  {item.start:.1f}–{item.stop or item.start:.1f} s" if timed else ""
        facts = [f"{hit.score:.3f}", "" if hit.probability is None else f"{100 * hit.probability:.0f}% sure"]
        facts += ["has the words" if hit.words else "", item.name, PARTS.get(item.split, item.split)]
        say(
            console,
            f"{number:>3}. {_path_of(item)}{span}" if _path_of(item) else f"{number:>3}. {item.text or item.key}",
        )
        say(console, "     " + " · ".join(filter(None, facts)))
        if _path_of(item) and item.text:
            say(console, f"     {item.text}")


def _path_of(item: Item) -> str:
    """The path of the file of an item, relative to the current folder where it lies inside; empty if it has none."""
    from crossclr.data.emoji_set import is_built_in

    if not item.file or is_built_in(item.file):
        return ""
    path = Path(item.file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
