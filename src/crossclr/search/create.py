"""Build the index of a run next to the run, and change it without rebuilding it."""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from crossclr.data.emoji_set import is_built_in
from crossclr.extract import Report
from crossclr.extract.extraction import MEDIA as MEDIA_TABLE
from crossclr.models import SearchSpace
from crossclr.search.confidence import Encoder
from crossclr.search.faiss_graph import IndexSettings
from crossclr.search.faiss_index import FaissIndex
from crossclr.search.index import (
    FORMAT,
    INDEX,
    ITEMS,
    Index,
    current_generation,
    new_generation,
    open_backend,
    read_meta,
    write_index,
)
from crossclr.search.item_map import place_items, place_new_items
from crossclr.search.items import Item, Items
from crossclr.search.onnx_export import write_query_encoder
from crossclr.search.onnx_queries import QUERY_ENCODER
from crossclr.search.previews import make_previews
from crossclr.search.query import QueryError
from crossclr.search.query_encoders import text_modalities, text_recipe, trial_encoder
from crossclr.search.run_items import TEXT, EmbeddedItems, MediaFinder, Progress, embed_items, read_shard_items
from crossclr.storage import write_file
from crossclr.training import Run


def build_index(
    run: Run | str | Path,
    *,
    splits: Sequence[str] | None = None,
    shards: Sequence[str | Path] | None = None,
    modalities: Sequence[str] | None = None,
    media: str | Path | None = None,
    backend: Literal["faiss", "milvus"] = "faiss",
    uri: str | None = None,
    settings: IndexSettings | None = None,
    batch_size: int = 64,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Path:
    """Build the index of a run. An existing index stays in use until the new one is complete.

    Args:
        run: a trained run, or its folder.
        splits: splits to index. Default: those that the run's config names.
        shards: index these shards of embeddings (files, patterns or folders) instead of the run's own data.
        modalities: names of the modalities to index. Default: all that the data has.
        media: where images, videos or sounds are (see `MediaFinder`). Default: the table that `crossclr extract` wrote
            next to the features, if there is one.
        backend: ``faiss``, or ``milvus`` with a ``uri``.
        uri: address of the Milvus server, or a ``.db`` file.
        settings: how to build the faiss index.
        batch_size: samples to embed at once.
        device: where to embed.
        progress: called with the task, the steps done and all steps.

    Returns:
        the folder of the index.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    names = run.config.data.modality_names
    wanted = check_modalities(names if modalities is None else modalities, names)
    if shards is not None and (splits or media):
        raise ValueError("shards contain all that is indexed; give them without splits and media")
    model = run.load_space()
    roots: set[str] = set()
    if shards is None:
        data, finder = run.open_data(), MediaFinder(media or extracted_media(run))
        chosen, roots = list(splits) if splits else default_splits(run), finder.roots
        for split in chosen:
            data.where(split=split)  # reports an unknown name before anything is written
    with new_generation(run.path / INDEX) as folder:
        if shards is None:
            found = embed_items(model, data, chosen, finder, batch_size, device, progress)
        else:
            from crossclr.evaluation.bulk import shard_columns

            found = read_shard_items(shards, model.embedding_dim, run.digest(), shard_columns(run.config), progress)
        absent = [name for name in wanted if name not in found]
        if len(absent) == len(wanted) or (modalities is not None and absent):
            raise ValueError(f"the {'shards' if shards else 'splits'} have no items of {' or '.join(absent)}")
        found = {name: found[name] for name in wanted if name in found}
        meta = {**_about(run, model, found), "media_roots": sorted(roots), "backend": backend}
        make_previews(run.path, found.values(), progress)
        _report(progress, "building the index", 0)
        _write_new(run, folder, model, found, meta, partial(_new_index, meta, settings, uri), progress)
        _report(progress, "drawing the map", 3)
    return run.path / INDEX


def _about(run: Run, model: SearchSpace, found: Mapping[str, EmbeddedItems]) -> dict[str, Any]:
    """What an index says about itself."""
    texts = text_modalities(found, model.dims)
    return {
        "format": FORMAT,
        "name": run.config.name,
        "about": run.config.about,
        "weights": run.digest(),
        "dim": int(next(iter(found.values())).vectors.shape[1]),
        "text_modality": texts[0] if texts else None,  # encodes typed queries, unless the query chooses another
        "text_modalities": texts,
        "validation": run.config.splits.validate_,
        "hub_channels": model.hubs is not None,
        "experts": list(model.experts),
        "modalities": {name: {"label": label, "text": found[name].is_text} for name, label in _labels(found).items()},
    }


def _write_new(
    run: Run,
    folder: Path,
    model: SearchSpace,
    found: Mapping[str, EmbeddedItems],
    meta: dict[str, Any],
    new_index: Callable[[str, int], Index],
    progress: Progress | None,
) -> None:
    """Number the items of a new index and write everything."""
    items, indexes, ids = Items(folder / ITEMS, writable=True), {}, {}
    for name, own in found.items():
        first = items.next_id()
        ids[name] = np.arange(first, first + len(own.items), dtype=np.int64)
        items.put(replace(item, id=first + number) for number, item in enumerate(own.items))
        indexes[name] = new_index(name, own.vectors.shape[1])
        indexes[name].add(ids[name], own.vectors)
        others = [other.vectors for modality, other in found.items() if modality != name]
        indexes[name].compact(np.concatenate([own.vectors[:0], *others]))  # examples of queries
    _report(progress, "drawing the map", 2)
    place_items(items, found, ids)
    text, recipe = meta["text_modality"], text_recipe(run.config)
    if text is not None and recipe is None:
        write_query_encoder(model, folder, text)
    write_index(folder, items, indexes, meta, trial_encoder(model, text, folder, recipe))


def default_splits(run: Run) -> list[str]:
    """The splits that a run's config names, each once."""
    splits = run.config.splits
    return list(dict.fromkeys(split for split in (splits.train, splits.validate_, splits.test) if split))


def extracted_media(run: Run) -> Path | None:
    """The table of media files that `crossclr extract` wrote next to the features of a run; None if there is none."""
    path = Path(getattr(run.config.data, "root", "") or ".") / MEDIA_TABLE
    return path if path.is_file() else None


def check_modalities(chosen: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The chosen modalities in the order of the data.

    Example:
        >>> check_modalities(["text", "video"], ["video", "sound", "text"])
        ('video', 'text')
    """
    if wrong := [one for one in chosen if one not in names]:
        raise ValueError(f"there is no modality {wrong[0]!r}; the run has {', '.join(names)}")
    if not chosen:
        raise ValueError(f"choose at least one modality to index: {', '.join(names)}")
    return tuple(name for name in names if name in chosen)


def _new_index(meta: Mapping[str, Any], settings: IndexSettings | None, uri: str | None, name: str, dim: int) -> Index:
    if meta["backend"] == "faiss":
        return FaissIndex(dim, settings)
    if not uri:
        raise ValueError("the Milvus back end needs --uri: the address of a server, or a file that ends in .db")
    from crossclr.search.milvus_index import MilvusIndex

    run = "".join(character if character.isalnum() else "_" for character in meta["name"])
    number = list(meta["modalities"]).index(name)  # a collection's name cannot have all characters of a modality's
    return MilvusIndex(dim, uri, f"crossclr_{run}_{number}", fresh=True)


def _labels(found: Mapping[str, EmbeddedItems]) -> dict[str, str]:
    """What the page calls the items of each modality, such as ``videos``."""
    labels = {}
    for name, own in found.items():
        kinds = {item.media for item in own.items if item.media} or {TEXT if own.is_text else name}
        kind = "audio" if name == "audio" else kinds.pop() if len(kinds) == 1 else "clip"  # the sound of videos
        files = [item.file for item in own.items if item.file and not is_built_in(item.file)]
        if kind in ("video", "audio") and len(set(files)) < len(files):
            kind = "moment"  # several items lie in one file
        labels[name] = "sounds" if kind == "audio" else f"{kind}s"
    shared = [label for label, count in Counter(labels.values()).items() if count > 1]
    return {name: f"{name} {label}" if label in shared else label for name, label in labels.items()}


def _report(progress: Progress | None, task: str, done: int) -> None:
    if progress is not None:
        progress(task, done, 3)


@dataclass
class Changes:
    """How many items an update added, replaced and deleted, and what the extraction of a folder omitted."""

    added: int = 0
    replaced: int = 0
    deleted: int = 0
    omitted: Report | None = None


def update_index(
    run: Run | str | Path,
    *,
    splits: Sequence[str] = (),
    delete: Sequence[str] = (),
    added: Mapping[str, EmbeddedItems] | None = None,
    roots: Sequence[Path] = (),
    media: str | Path | None = None,
    batch_size: int = 64,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Changes:
    """Add or replace the items of splits and delete items, without rebuilding the index.

    Args:
        run: a run that has an index, or its folder.
        splits: splits whose items are added; existing items are replaced.
        delete: names of items (``video/key``), or keys of clips, whose items are all deleted.
        added: items that were embedded elsewhere, by modality.
        roots: folders of their media files.
        media: as for `build_index`.
        batch_size: samples to embed at once.
        device: where to embed.
        progress: as for `build_index`.

    Raises:
        FileNotFoundError: the run has no index yet.
        ValueError: no item and no clip has a name in ``delete``, or the index was built from other weights.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    before = _current(run.path)
    meta = read_meta(before)
    if (splits or added) and meta["weights"] != run.digest():
        raise ValueError(f"the index in {before} was built from other weights than the run has now; rebuild it")
    encoder: Encoder | None = None
    changes, media_roots = Changes(), {*meta["media_roots"], *map(str, roots)}
    with new_generation(run.path / INDEX) as folder:
        items, indexes = _copy(before, folder, meta)
        for name in delete:
            changes.deleted += _delete(items, indexes, name)
        for gathered in [added] if added else []:
            _join(run, items, indexes, gathered, meta, changes, progress)
        if splits:
            data, finder = run.open_data(), MediaFinder(media or extracted_media(run))
            model = run.load_space()
            encoder = trial_encoder(model, meta["text_modality"], before, text_recipe(run.config))
            gathered = embed_items(model, data, splits, finder, batch_size, device, progress)
            _join(run, items, indexes, gathered, meta, changes, progress)
            media_roots |= finder.roots
        for index in indexes.values():
            index.compact()
        meta["media_roots"] = sorted(media_roots)
        write_index(folder, items, indexes, meta, encoder)
    return changes


def write_caption(run: Path, item: Item, text: str) -> Path:
    """Write the caption of an item as a text file next to its file, and make its words searchable.

    `crossclr start` learns from such files; until then, the vectors of the index stay as they are.

    Raises:
        QueryError: the item has no file of its own, or it lies outside the folders that the index names.
    """
    before = _current(run)
    meta = read_meta(before)
    if not item.file or is_built_in(item.file) or not Path(item.file).is_file():
        raise QueryError(f"{item.name} has no file of its own, so its caption cannot be changed")
    if not any(Path(item.file).resolve().is_relative_to(Path(root).resolve()) for root in meta["media_roots"]):
        raise QueryError(f"the file of {item.name} is outside the folders that the index names")
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    path = Path(item.file).with_suffix(".txt")
    write_file(path, "".join(f"{line}\n" for line in lines))
    with new_generation(run / INDEX) as folder:
        items, indexes = _copy(before, folder, meta)
        own = items.of_clip(item.key)
        sentences = [other.id for other in own if meta["modalities"][other.modality]["text"]]
        texts = {key: lines[number] if number < len(lines) else "" for number, key in enumerate(sentences)}
        texts |= {other.id: " ".join(lines[:1]) for other in own if other.id not in texts}
        items.set_columns(list(texts), {"text": list(texts.values())})
        write_index(folder, items, indexes, meta)
    return path


def _current(run: Path) -> Path:
    folder = current_generation(run / INDEX)
    if folder is None:
        raise FileNotFoundError(f"{run} has no index yet; build it with: crossclr index {run}")
    return folder


def _copy(before: Path, folder: Path, meta: Mapping[str, Any]) -> tuple[Items, dict[str, Index]]:
    """The items and vectors of a generation, to be changed in the next one."""
    kept = Items(before / ITEMS)
    items = kept.copy_to(folder / ITEMS)
    kept.close()
    if (before / QUERY_ENCODER).is_file():
        shutil.copy2(before / QUERY_ENCODER, folder)
    return items, {name: open_backend(meta, before, name) for name in meta["modalities"]}


def _join(
    run: Run,
    items: Items,
    indexes: Mapping[str, Index],
    gathered: Mapping[str, EmbeddedItems],
    meta: dict[str, Any],
    changes: Changes,
    progress: Progress | None,
) -> None:
    """Add embedded items of any modalities to an index."""
    present = [name for name in indexes if name in gathered]
    make_previews(run.path, [gathered[name] for name in present], progress)
    for modality in present:
        _add(items, indexes[modality], modality, gathered, meta, changes)


def _delete(items: Items, indexes: Mapping[str, Index], name: str) -> int:
    named = items.named(name)
    found = [named] if named is not None else items.of_clip(name)
    if not found:
        raise ValueError(f"the index has no item and no clip {name!r}; nothing was changed")
    for modality, index in indexes.items():
        index.delete(np.array([item.id for item in found if item.modality == modality], dtype=np.int64))
    items.delete(item.id for item in found)
    return len(found)


def _add(
    items: Items,
    index: Index,
    modality: str,
    gathered: Mapping[str, EmbeddedItems],
    meta: dict[str, Any],
    changes: Changes,
) -> None:
    found = gathered[modality]
    known = items.ids_of([item.name for item in found.items])
    fresh = [item for item in found.items if item.name not in known]
    next_id = items.next_id()
    known.update((item.name, next_id + number) for number, item in enumerate(fresh))
    ids = np.array([known[item.name] for item in found.items], dtype=np.int64)
    places = place_new_items(items, index, found)
    index.add(ids, found.vectors)
    columns = zip(found.items, ids.tolist(), places.tolist(), strict=True)
    items.put(replace(item, id=key, x=x, y=y) for item, key, (x, y) in columns)
    changes.added += len(fresh)
    changes.replaced += len(found.items) - len(fresh)
