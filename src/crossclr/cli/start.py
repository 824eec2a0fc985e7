"""`crossclr start`: from a folder of videos to the search page in one command."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossclr.cli.options import Captions, Host, Port, progress_bar, resumable, say
from crossclr.storage import write_file
from crossclr.storage.reading import read_json_object

if TYPE_CHECKING:
    from rich.console import Console

    from crossclr.extract import Report

FEW = 50  # recordings; below this, all are for training


def start(
    folder: Annotated[Path, typer.Argument(help="Folder of videos, images or sounds.")],
    captions: Captions = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default: runs/<name of the folder>.")] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    serve: Annotated[bool, typer.Option(help="Start the service at the end.")] = True,
) -> None:
    """Extract, train, index and serve a folder of recordings.

    Run the same command again to resume, or to add new files to the index. `crossclr extract`, `train`, `index` and
    `serve` do the same step by step, with all options.

    Examples:
        crossclr start clips --captions captions.json

        crossclr start films --port 8080
    """
    from rich.console import Console

    from crossclr.search import serve_run
    from crossclr.search.service.server import listen

    console = Console()
    if not folder.is_dir():
        raise FileNotFoundError(2, "No such directory", str(folder))
    base = out or Path("runs") / name_of(folder)
    if serve:
        listen(host, port).close()  # reports a port that is in use before the long work, not after it
    with resumable():
        prepare(folder, captions, base, console)
    if serve:
        serve_run(
            base / "run",
            host=host,
            port=port,
            ready=lambda address: say(console, f"open {address} in a browser; Ctrl-C stops the service"),
        )


def name_of(folder: Path) -> str:
    """The name of a folder as the name of a run."""
    return re.sub(r"[^\w.+-]+", "-", folder.resolve().name) or "mine"


def prepare(folder: Path, captions: Path | None, base: Path, console: Console) -> None:
    """Everything before the service: features, a trained run and its index, each only as far as it is missing."""
    from crossclr import api
    from crossclr.cli.extract import show_files, show_problems
    from crossclr.search import build_index
    from crossclr.search.index import INDEX, current_generation
    from crossclr.training import Run

    features, run = base / "features", base / "run"
    report = _extract(folder, captions, features, console)
    show_problems(report, console)
    show_files(report, console)
    if report.config is None:
        raise ValueError("training needs sentences (--captions, or subtitles next to the videos) or videos with sound")
    if (run / "config.yaml").is_file():
        api.resume(run, baseline=False)
    else:
        say(console, f"training on {report.clips} clips")
        api.train(report.config, {"name": name_of(folder)}, out=run, baseline=False)
    indexed, state = base / "indexed.txt", _state(features)
    known = indexed.read_text() if indexed.is_file() else ""
    if known != state or current_generation(Run.open(run).path / INDEX) is None:
        say(console, "building the index")
        with progress_bar(console) as show:
            build_index(run, progress=show)
        write_file(indexed, state)


def _state(features: Path) -> str:
    """A digest of the sentences and files of a feature set, which changes whenever the index is out of date."""
    found = hashlib.sha256((features / "meta_all.json").read_bytes())
    for file in sorted({str(entry["file"]) for entry in read_json_object(features / "media.json").values()}):
        about = Path(file).stat()
        found.update(f"{file} {about.st_size} {about.st_mtime_ns}".encode())
    return found.hexdigest()


def _extract(folder: Path, captions: Path | None, out: Path, console: Console) -> Report:
    from crossclr.extract import Settings, extract
    from crossclr.extract.recordings import list_media
    from crossclr.extract.registry import load_experts

    listing = list_media(folder, captions)
    experts = load_experts(["appearance", "text" if listing.captioned else "audio"])
    few = len(listing.recordings) < FEW
    settings = Settings(fractions={"train": 1.0}) if few else Settings()
    rows: dict[str, int] = {}
    with progress_bar(console) as show:

        def progress(expert: str, count: int) -> None:
            rows[expert] = rows.get(expert, 0) + count
            show(", ".join(f"{done:,} rows of {name}" for name, done in rows.items()), 0, 0)

        return extract(folder, out, experts, captions, settings, progress)
