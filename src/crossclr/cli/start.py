"""`crossclr start`: from a folder of photos, videos and sounds to the search page in one command."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossclr.cli.options import Captions, Host, Port, progress_bar, resumable, say
from crossclr.storage import write_json
from crossclr.storage.reading import read_json_object

if TYPE_CHECKING:
    from rich.console import Console

    from crossclr.extract import Expert, Report
    from crossclr.extract.recordings import Listing

LOOK_SECONDS = 2.0  # between two looks at the folder
DONE = "start.json"  # what the run and its index were made from


def start(
    folder: Annotated[Path, typer.Argument(help="Folder of photos, videos or sounds.")],
    captions: Captions = None,
    experts: Annotated[
        list[str] | None,
        typer.Option(
            "--expert",
            "--experts",
            metavar="NAME[=MODEL],...",
            help="Experts to run, as in crossclr extract. appearance=openai/clip-vit-base-patch32 also reads texts.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default: runs/<name of the folder>.")] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    serve: Annotated[bool, typer.Option(help="Start the service at the end.")] = True,
) -> None:
    """Make a folder of photos, videos and sounds searchable by words, and open the search page.

    No captions are needed. With some, the search learns from them: as JSON or CSV (--captions), as subtitles, or as
    text files with the names of the photos. While the page is open, it follows the folder and its captions. Run the
    same command again to resume, or to follow what changed since.

    Examples:
        crossclr start photos

        crossclr start clips --captions captions.json

        crossclr start photos --experts appearance=openai/clip-vit-base-patch32
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
        prepare(folder, captions, base, console, experts)
    if serve:
        following = partial(follow, folder, captions, base, console, experts)
        threading.Thread(target=following, daemon=True).start()
        serve_run(
            base / "run",
            host=host,
            port=port,
            ready=lambda address: say(console, f"open {address} in a browser; Ctrl-C stops the service"),
        )


def follow(
    folder: Path,
    captions: Path | None,
    base: Path,
    console: Console,
    specs: list[str] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Prepare again whenever files or captions have changed and then rested; it runs next to the service."""

    def state() -> list[tuple[str, int, int]]:
        paths = sorted(path for path in [*folder.rglob("*"), *([captions] if captions else [])] if path.is_file())
        return [(str(path), (about := path.stat()).st_size, about.st_mtime_ns) for path in paths]

    done = before = state()
    while True:
        pause(LOOK_SECONDS)
        try:
            now = state()
            if now != done and now == before:  # a file that still grows has to wait
                done = now
                prepare(folder, captions, base, console, specs)
            before = now
        except (OSError, ValueError) as error:  # a file that goes while it is read, or a damaged caption file
            say(console, f"the folder changed, and the search stays as it was: {error}")


def name_of(folder: Path) -> str:
    """The name of a folder as the name of a run."""
    return re.sub(r"[^\w.+-]+", "-", folder.resolve().name) or "mine"


def prepare(folder: Path, captions: Path | None, base: Path, console: Console, specs: list[str] | None = None) -> None:
    """Everything before the service: features, a fitted run and its index, each only as far as it is outdated."""
    from crossclr import api
    from crossclr.cli.extract import show_problems
    from crossclr.extract.recordings import list_media
    from crossclr.search import build_index
    from crossclr.training import load_config

    listing, features, run = list_media(folder, captions, keep_all=True), base / "features", base / "run"
    experts = _experts(listing, specs)
    say(console, _plan(listing, experts))
    report = _extract(listing, features, experts, console)
    show_problems(report, console)
    if report.config is None:
        raise ValueError("no file of the folder can be searched; the lines above say why")
    now, before = _state(features), read_json_object(base / DONE) if (base / DONE).is_file() else {}
    fitted = (run / "results.json").is_file()
    if fitted and now == before:
        say(console, "nothing changed since the last time")
        return
    config = load_config(report.config, {"name": name_of(folder)})
    fits = not fitted or now["learned"] != before.get("learned")
    found = api.refit(run, config, space=fits) if run.exists() else api.train(config, out=run, baseline=False)
    if fits:
        say(console, _rests_on(found.results or {}))
    with progress_bar(console) as show:
        build_index(run, progress=show)
    write_json(base / DONE, now)


def _experts(listing: Listing, specs: list[str] | None) -> list[Expert]:
    """The experts that were chosen, or those of the files there are; always one that reads typed words."""
    from crossclr.extract.media import media_kind
    from crossclr.extract.registry import Spec, load_experts

    kinds = {media_kind(recording.path) for recording in listing.recordings}
    chosen = [part.strip() for part in ",".join(specs or []).split(",") if part.strip()]
    if not chosen:
        chosen = [name for name, needed in (("appearance", {"image", "video"}), ("audio", {"audio"})) if kinds & needed]
    experts = load_experts(chosen)
    if all(expert.needs.kind != "tokens" for expert in experts):
        shared = [expert for expert in experts if expert.space and Spec.parse(expert.spec).model]
        experts += load_experts([f"text={shared[0].model}" if shared else "text"])
    return experts


def _plan(listing: Listing, experts: list[Expert]) -> str:
    """What will be searchable and how, before long work starts."""
    from crossclr.extract.media import media_kind

    kinds = Counter(media_kind(recording.path) for recording in listing.recordings)
    words = {"image": "photos", "video": "videos", "audio": "sounds"}
    counted = ", ".join(f"{kinds[kind]:,} {word}" for kind, word in words.items() if kinds[kind]) or "no file"
    captioned = len({point.recording for point in listing.datapoints if point.segments})
    spaces = Counter(expert.space for expert in experts if expert.space)
    text = next(expert for expert in experts if expert.needs.kind == "tokens")
    if spaces[text.space] > 1:
        named = "1,000 named things" if text.dim == 384 else text.model
        how = f"typed words find what they show ({named}" + (
            f"; files with captions: {captioned:,})" if captioned else ")"
        )
    elif captioned:
        how = f"typed words find them as far as captions of {captioned:,} files teach it"
    else:
        how = "there are no captions, so only file names and similar files can be searched"
    return f"{counted}: {how}"


def _rests_on(results: dict[str, object]) -> str:
    """What the search rests on, with the number of samples behind each number."""
    from crossclr.models.space import Facts

    facts = Facts.from_dict(results["space"])  # type: ignore[arg-type]
    used = ", ".join(f"{part.name} ({part.use})" for part in facts.parts if part.share)
    measured = "too few captions to measure it" if facts.estimate is None else f"expect {facts.estimate}"
    return f"search rests on {used}; {measured}"


def _state(features: Path) -> dict[str, str]:
    """Digests of what the space learned from (files with sentences) and of everything that is indexed."""
    meta, media = read_json_object(features / "meta_all.json"), read_json_object(features / "media.json")
    manifest = read_json_object(features / "manifest.json")
    files = {}
    for entry in media.values():
        about = Path(entry["file"]).stat()
        files[entry["file"]] = [about.st_size, about.st_mtime_ns]
    described = {key: entry for key, entry in meta.items() if any(segment["text"] for segment in entry["segments"])}
    sources = {entry["data_key"]: manifest["recordings"][entry["data_key"]]["file"] for entry in described.values()}
    learned = [described, manifest["experts"], manifest["modalities"]]
    learned.append({key: files[str(Path(file).resolve())] for key, file in sources.items()})
    return {"learned": _digest(learned), "indexed": _digest([meta, media, files, manifest["experts"]])}


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode(errors="surrogateescape")).hexdigest()


def _extract(listing: Listing, out: Path, experts: list[Expert], console: Console) -> Report:
    from crossclr.extract import Settings
    from crossclr.extract.extraction import Extraction

    settings = Settings(fractions={"train": 1.0}, stored="float32", keep_all=True)
    job = Extraction(listing, out, experts, settings)
    with progress_bar(console) as show:
        job.report_files = lambda done, total: show("reading files", done, total)
        return job.run()
