"""Add a folder of recordings to an index without training: the run's experts and its model do it."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossclr.data.sample import Rows
from crossclr.data.sequences import clip_bounds, join_rows, limit_rows
from crossclr.extract import Expert, Report, Settings, TokenExpert, extract, load
from crossclr.extract.extraction import MANIFEST
from crossclr.extract.media import RECORDINGS, media_kind
from crossclr.extras import OptionalModule
from crossclr.search.create import Changes, update_index
from crossclr.search.filters import clip_fields
from crossclr.search.index import INDEX, ITEMS, current_generation
from crossclr.search.items import Item, Items
from crossclr.search.query_encoders import run_experts
from crossclr.search.run_items import EmbeddedItems, Progress, encode_rows
from crossclr.storage.reading import read_json_object
from crossclr.training import Run

if TYPE_CHECKING:
    import h5py
else:
    h5py = OptionalModule("h5py", "train", "HDF5")

WATCH_SECONDS = 2.0  # between two looks at a folder
LONGEST_CAPTION = 10_000  # characters
ADDED = "added"  # the folder of the run with the features of what was added, and the split of these items


def add_folder(
    run: Run | str | Path,
    folder: Path | str,
    *,
    segments: str | None = None,
    progress: Progress | None = None,
    loader: Callable[..., Expert] = load,
    may_be_empty: bool = False,
) -> Changes:
    """Extract the new recordings of a folder with the run's experts and add them to its index.

    A call for the same folder again decodes only what is new, and removes the items of files that are gone. The lines
    of a text file next to a recording, with its name and ``.txt``, are its caption, which words are found in.

    Args:
        run: a run that has an index, or its folder.
        folder: images, videos or sounds.
        segments: how to cut recordings (see `Cutting.parse`). Default: each is one item.
        progress: called with the task, the steps done and all steps.
        loader: builds an expert from its spec.
        may_be_empty: whether a folder without recordings is no error.

    Returns:
        the number of changes, and what the extraction omitted.

    Raises:
        QueryError: it is not known which experts made the features of the run.
        ValueError: there is nothing to add.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    folder = Path(folder).resolve()
    if not folder.is_dir():
        raise FileNotFoundError(2, "No such directory", str(folder))
    recipes = run_experts(run.config)
    name = re.sub(r"[^\w.-]+", "-", folder.name) or "folder"
    out = run.path / ADDED / name
    found: dict[str, list[tuple[Item, Rows]]] = {}
    omitted: Report | None = None
    if any(path.suffix.lower() in RECORDINGS for path in folder.rglob("*")):
        experts = {one.spec: loader(one.spec, **one.options) for part in recipes.values() for one in part}
        chosen = [expert for expert in experts.values() if not isinstance(expert, TokenExpert)]

        def report(expert: str, count: int) -> None:
            if progress is not None:
                progress(f"extracting {expert}", 0, 0)

        # one modality of all experts, so that a recording needs the rows of any of them
        together = {ADDED: [expert.name for expert in chosen]}
        settings = Settings(fractions={ADDED: 1.0}, segments=segments, modalities=together)
        omitted = extract(folder, out, chosen, settings=settings, progress=report)
        for modality, own in recipes.items():
            built = [experts[one.spec] for one in own]
            found[modality] = _read(out, built, modality, name, run.config.data)
    elif out.is_dir():
        shutil.rmtree(out)  # the folder is empty now
    gone = _gone(run, folder, {item.name for pairs in found.values() for item, _ in pairs})
    if not any(found.values()) and not gone:
        if may_be_empty:
            return Changes(omitted=omitted)
        raise ValueError(f"{folder} has no image, video or sound to add")
    space, limits = run.load_space().eval(), run.config.data.row_limits()
    added = {}
    for modality, pairs in found.items():
        if pairs:
            limited = [limit_rows(rows, limits.get(modality)) for _, rows in pairs]
            vectors = encode_rows(space, modality, limited, as_items=True)
            added[modality] = EmbeddedItems([item for item, _ in pairs], vectors)
    changes = update_index(run, added=added or None, delete=gone, roots=[folder], progress=progress)
    return replace(changes, omitted=omitted)


def watch_folder(
    run: Run | str | Path,
    folder: Path | str,
    *,
    segments: str | None = None,
    progress: Progress | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[Changes]:
    """Add a folder now, and again whenever its files have changed and then rested; see `add_folder`.

    Args:
        run: a run that has an index, or its folder.
        folder: images, videos or sounds.
        segments: how to cut recordings.
        progress: as for `add_folder`.
        pause: waits for some seconds.
    """
    done: object = None
    before: object = None
    while True:
        now = _state(Path(folder))
        if now != done and (done is None or now == before):  # a file that still grows has to wait
            yield add_folder(run, folder, segments=segments, progress=progress, may_be_empty=True)
            done = now
        before = now
        pause(WATCH_SECONDS)


def _state(folder: Path) -> list[tuple[str, int, int]]:
    found = ((path, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file())
    return [(str(path), about.st_size, about.st_mtime_ns) for path, about in found]


def _read(out: Path, experts: Sequence[Expert], modality: str, name: str, data: Any) -> list[tuple[Item, Rows]]:
    """The items of one modality of an extracted folder, each with its rows."""
    meta, manifest = read_json_object(out / "meta_all.json"), read_json_object(out / MANIFEST)
    labels, dims = [one.name for one in experts], [one.dim for one in experts]
    present = [label for label in dict.fromkeys(labels) if (out / f"{label}.h5").is_file()]
    files = {label: h5py.File(out / f"{label}.h5", "r", locking=False) for label in present}
    found = []
    try:
        for key, entry in meta.items():
            place = entry["data_key"]
            parts = [_rows(files, one, place) for one in labels]
            if all(part is None for part in parts):
                continue
            whole = join_rows(parts, dims)
            spans = [(segment["start_sec"], segment["stop_sec"]) for segment in entry["segments"]]
            starts, stops = (np.array(column, dtype=np.float64) for column in zip(*spans, strict=True))
            extra = getattr(data, "add_stop_frame", 0), max(1, getattr(data, "expand_segments", 0))
            bounds = clip_bounds(len(whole), entry["duration_sec"], starts, stops, *extra)
            path = Path(manifest["recordings"][place]["file"])
            kind = str(media_kind(path))
            for number, (segment, (first, last)) in enumerate(zip(entry["segments"], bounds.tolist(), strict=True)):
                clip = f"{name}/{key}" + (f"/{number}" if len(spans) > 1 else "")
                item = Item(-1, f"{modality}/{clip}", modality, clip, segment["text"], ADDED, media=kind)
                item = replace(item, file=str(path.resolve()), text=_caption(path) or item.text)
                if kind != "image":
                    item = replace(item, start=segment["start_sec"], stop=segment["stop_sec"])
                item = replace(item, fields=clip_fields(item.file, kind, item.start, item.stop, {}))
                found.append((item, whole[first:last]))
    finally:
        for file in files.values():
            file.close()
    return found


def _caption(path: Path) -> str:
    """The lines of the text file next to a recording; empty if there is none."""
    try:
        return path.with_suffix(".txt").read_text(encoding="utf-8-sig", errors="replace").strip()[:LONGEST_CAPTION]
    except OSError:
        return ""


def _rows(files: Mapping[str, h5py.File], label: str, key: str) -> Rows | None:
    return np.asarray(files[label][key], np.float32) if label in files and key in files[label] else None


def _gone(run: Run, folder: Path, kept: set[str]) -> list[str]:
    """Names of the added items whose file is no longer in the folder, or that are cut in another way now."""
    current = current_generation(run.path / INDEX)
    if current is None:
        raise FileNotFoundError(f"{run.path} has no index yet; build it with: crossclr index {run.path}")
    items = Items(current / ITEMS)
    rows = items.columns("name", "split", "file")
    items.close()
    return [
        name
        for name, split, file in rows
        if split == ADDED and Path(file).is_relative_to(folder) and (name not in kept or not Path(file).is_file())
    ]
