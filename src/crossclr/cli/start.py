"""`crossclr start`: from a folder of videos to the search page in one command."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossclr.cli.options import Captions, Host, Port, resumable, say
from crossclr.storage import write_file
from crossclr.storage.reading import read_json_object

if TYPE_CHECKING:
    from rich.console import Console

    from crossclr.extract import Report
    from crossclr.search.service.progress_page import ProgressPage

FEW = 50  # recordings; below this, all are for training
STEPS = ["Look at the files and turn them into features", "Train", "Build the index"]


def start(
    folder: Annotated[Path, typer.Argument(help="Folder of videos, images or sounds.")],
    captions: Captions = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default: runs/<name of the folder>.")] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    serve: Annotated[bool, typer.Option(help="Start the service at the end.")] = True,
) -> None:
    """Extract, train, index and serve a folder of recordings.

    The page shows the progress from the first second. Run the same command again to resume, or to add new files to the
    index. `crossclr extract`, `train`, `index` and `serve` do the same step by step, with all options.

    Examples:
        crossclr start clips --captions captions.json

        crossclr start films --port 8080
    """
    from rich.console import Console

    from crossclr.search import serve_run
    from crossclr.search.service.progress_page import ProgressPage

    console = Console()
    if not folder.is_dir():
        raise FileNotFoundError(2, "No such directory", str(folder))
    base = out or Path("runs") / name_of(folder)
    page = ProgressPage(name_of(folder), STEPS, host, port)
    try:
        say(console, f"open {page.address} in a browser; Ctrl-C stops")
        with resumable():
            prepare(folder, captions, base, page, console)
    finally:
        page.close()
    if serve:
        serve_run(
            base / "run",
            host=host,
            port=page.port,
            ready=lambda address: say(console, f"ready: {address}; Ctrl-C stops the service"),
        )


def name_of(folder: Path) -> str:
    """The name of a folder as the name of a run."""
    return re.sub(r"[^\w.+-]+", "-", folder.resolve().name) or "mine"


def prepare(folder: Path, captions: Path | None, base: Path, page: ProgressPage, console: Console) -> None:
    """Everything before the service: features, a trained run and its index, each only as far as it is missing."""
    from crossclr import api
    from crossclr.cli.extract import show_files, show_problems
    from crossclr.search import build_index
    from crossclr.search.generations import current_generation
    from crossclr.search.index_files import INDEX
    from crossclr.training import Run

    features, run = base / "features", base / "run"
    report = _extract(folder, captions, features, page)
    show_problems(report, console)
    show_files(report, console)
    if report.config is None:
        raise ValueError("training needs sentences (--captions, or subtitles next to the videos) or videos with sound")
    page.begin(1)
    if (run / "config.yaml").is_file():
        api.resume(run, baseline=False)
    else:
        say(console, f"training on {report.clips} clips")
        api.train(report.config, {"name": name_of(folder)}, out=run, baseline=False)
    page.begin(2)
    indexed, state = base / "indexed.txt", _state(features)
    known = indexed.read_text() if indexed.is_file() else ""
    if known != state or current_generation(Run.open(run).path / INDEX) is None:
        say(console, "building the index")
        build_index(run, media=features / "media.json", progress=lambda what, done, total: page.begin(2, what))
        write_file(indexed, state)
    page.begin(3)


def _state(features: Path) -> str:
    """A digest of the sentences and files of a feature set, which changes whenever the index is out of date."""
    found = hashlib.sha256((features / "meta_all.json").read_bytes())
    for file in sorted({str(entry["file"]) for entry in read_json_object(features / "media.json").values()}):
        about = Path(file).stat()
        found.update(f"{file} {about.st_size} {about.st_mtime_ns}".encode())
    return found.hexdigest()


def _extract(folder: Path, captions: Path | None, out: Path, page: ProgressPage) -> Report:
    from crossclr.extract import Settings, extract, load_experts
    from crossclr.extract.recordings import list_media

    listing = list_media(folder, captions)
    experts = load_experts(["appearance", "text" if listing.captioned else "audio"])
    few = len(listing.recordings) < FEW
    settings = Settings(fractions={"train": 1.0}) if few else Settings()
    rows: dict[str, int] = {}

    def progress(expert: str, count: int) -> None:
        rows[expert] = rows.get(expert, 0) + count
        page.begin(0, ", ".join(f"{done:,} rows of {name}" for name, done in rows.items()))

    return extract(folder, out, experts, captions, settings, progress)
