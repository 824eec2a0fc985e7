"""`crossclr index`: from a run folder to an index beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from crossclr.search.building.item_statistics import (
    FITTED,
    Hubness,
    corrected,
    corrected_queries,
    count_again,
    describe,
    influence_of_new,
    other_modality,
)
from crossclr.search.building.map_layout import centre, place_among, project
from crossclr.search.building.run_items import MODALITIES, Gathered, Progress, gather
from crossclr.search.building.shard_items import gather_shards
from crossclr.search.encoders.text_queries import text_side
from crossclr.search.index.contract import Index
from crossclr.search.index.faiss_graph import IndexSettings
from crossclr.search.index.faiss_index import FaissIndex
from crossclr.search.index.generations import current_generation, new_generation
from crossclr.search.items.item_table import Items
from crossclr.search.items.media_files import MediaFinder
from crossclr.training import Run

INDEX, META, ITEMS, CODES, MAP = "index", "index.json", "items.sqlite", "codes.npy", "map.json"
FORMAT = 1
MAP_POINTS = 8000


def build_index(
    run: Run | str | Path,
    *,
    splits: Sequence[str] | None = None,
    shards: Sequence[str | Path] | None = None,
    modalities: Sequence[str] | None = None,
    media: str | Path | None = None,
    backend: Literal["faiss", "milvus"] = "faiss",
    uri: str | None = None,
    hubness: bool = False,
    settings: IndexSettings | None = None,
    batch_size: int = 64,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Path:
    """Build the index of a run; an index that is there already stays in use until the new one is complete.

    Args:
        run: a trained run, or its folder.
        splits: splits to index; left out, those that the run's config names.
        shards: index these shards of embeddings (files, patterns or folders) and not the run's own data.
        modalities: ``a``, ``b`` or both; left out, both, or those that the shards have.
        media: where pictures, videos or sounds are (see `MediaFinder`).
        backend: ``faiss``, or ``milvus`` with a ``uri``.
        uri: address of the Milvus server, or a ``.db`` file.
        hubness: store a correction against hubs with each item, as a further channel, computed from the items of the
            index. Where the run has fitted one and this is not asked for, that one is stored.
        settings: how the faiss index is built.
        batch_size: samples embedded at once.
        device: where to embed.
        progress: called with what is being done, how much is done and how much there is.

    Returns:
        the folder of the complete index.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    wanted = check_modalities(MODALITIES if modalities is None else modalities)
    if shards is not None and (splits or media):
        raise ValueError("shards are indexed as they are: they go without splits and media")
    model = run.load_model()
    correct: Hubness = hubness or (FITTED if model.hubs else False)
    roots: set[str] = set()
    chosen = list(splits) if splits else default_splits(run)
    source = None
    if shards is None:
        source = run.open_source()
        finder = MediaFinder(source, media)
        for split in chosen:
            source.keys(split)  # an unknown name shall show before anything is written
    with new_generation(run.path / INDEX) as folder:
        if shards is not None:
            gathered = gather_shards(shards, model.embedding_dim, run.digest(), progress, model.anchors)
            wanted = _present(gathered, wanted, explicit=modalities is not None)
        elif source is not None:
            gathered = gather(model, source, chosen, finder, batch_size, device, progress)
            roots = set(finder.roots)
        meta: dict[str, Any] = {
            "format": FORMAT,
            "name": run.config.name,
            "about": run.config.about,
            "weights": run.digest(),
            "dim": int(gathered["a"].vectors.shape[1]),
            "text_side": text_side(run.config),
            "media_roots": sorted(roots),
            "hubness": correct,
            "backend": backend,
            "modality_names": {"a": "a", "b": "b"},
            "modalities": {},
        }
        numbers, first = {}, 0
        for modality in MODALITIES:
            count = len(gathered[modality].items) if modality in wanted else 0
            numbers[modality] = np.arange(first, first + count, dtype=np.int64)
            first += count
        _report(progress, "building the index", 0, 3)
        indexes: dict[str, Index] = {}
        for modality in wanted:
            asked = gathered[other_modality(modality)].vectors
            rows = corrected(gathered[modality].vectors, asked, correct, model.hubs.get(modality))
            index = _new_index(backend, rows.shape[1], settings, uri, run, modality)
            index.add(numbers[modality], rows)
            if isinstance(index, FaissIndex):
                index.compact(corrected_queries(asked, correct))
            index.save(folder / modality)
            indexes[modality] = index
            meta["modalities"][modality] = {"label": _label(run, modality, gathered[modality])}
        _report(progress, "counting hubs", 1, 3)
        items = Items(folder / ITEMS, writable=True)
        describe(items, indexes, gathered, numbers, meta, run)
        _report(progress, "drawing the map", 2, 3)
        _place(items, {name: gathered[name] for name in wanted}, numbers)
        _finish(folder, items, indexes, meta)
        _report(progress, "drawing the map", 3, 3)
    return run.path / INDEX


def update_index(
    run: Run | str | Path,
    *,
    splits: Sequence[str] = (),
    delete: Sequence[str] = (),
    media: str | Path | None = None,
    batch_size: int = 64,
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, int]:
    """Add or replace the items of splits and delete items, without building the index anew.

    Args:
        run: a run that has an index, or its folder.
        splits: splits whose items are added; those that are there already are replaced.
        delete: names of items (``a/key``) or keys of clips, of which all items go.
        media: as for `build_index`.
        batch_size: samples embedded at once.
        device: where to embed.
        progress: as for `build_index`.

    Returns:
        how many items were ``added``, ``replaced`` and ``deleted``.

    Raises:
        ValueError: nothing has the name or key that shall be deleted.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    before = current_generation(run.path / INDEX)
    if before is None:
        raise FileNotFoundError(f"{run.path} has no index yet; build it with: crossclr index {run.path}")
    meta = json.loads((before / META).read_text())
    if splits and meta["weights"] != run.digest():
        raise ValueError(f"the index in {before} was built from other weights than the run has now; build it anew")
    source = run.open_source()
    finder = MediaFinder(source, media)
    counts = {"added": 0, "replaced": 0, "deleted": 0}
    with new_generation(run.path / INDEX) as folder:
        kept = Items(before / ITEMS)
        items = kept.copy_to(folder / ITEMS)
        kept.close()
        indexes: dict[str, Index] = {name: open_backend(meta, before, name) for name in meta["modalities"]}
        for name in delete:
            gone = [item for item in (items.named(name),) if item is not None] or items.of_clip(name)
            if not gone:
                raise ValueError(f"the index has no item and no clip {name!r}; nothing was changed")
            for modality, index in indexes.items():
                index.delete(np.array([item.id for item in gone if item.modality == modality], dtype=np.int64))
            items.delete(item.id for item in gone)
            counts["deleted"] += len(gone)
        if splits:
            model = run.load_model()
            gathered = gather(model, source, splits, finder, batch_size, device, progress)
            next_id = 1 + max((row[0] for row in items.columns("id")), default=-1)
            for modality, index in indexes.items():
                found = gathered[modality]
                known = items.ids_of([item.name for item in found.items])
                fresh = [item for item in found.items if item.name not in known]
                known.update((item.name, next_id + number) for number, item in enumerate(fresh))
                next_id += len(fresh)
                ids = np.array([known[item.name] for item in found.items], dtype=np.int64)
                places = _places_among(items, index, found, meta)
                asked = gathered[other_modality(modality)].vectors
                rows = corrected(found.vectors, asked, meta["hubness"], model.hubs.get(modality))
                index.add(ids, rows)
                scores, shares = influence_of_new(items, modality, found, fresh, meta["modalities"][modality])
                items.put(
                    replace(
                        item, id=int(key), x=float(x), y=float(y), connectivity=float(score), influence=float(share)
                    )
                    for item, key, (x, y), score, share in zip(found.items, ids, places, scores, shares, strict=True)
                )
                counts["added"] += len(fresh)
                counts["replaced"] += len(found.items) - len(fresh)
        for index in indexes.values():
            if isinstance(index, FaissIndex) and index.needs_compacting:
                index.compact()
        if splits:
            count_again(items, indexes, meta)
        meta["media_roots"] = sorted({*meta["media_roots"], *finder.roots})
        for modality, index in indexes.items():
            index.save(folder / modality)
        _finish(folder, items, indexes, meta)
    return counts


def default_splits(run: Run) -> list[str]:
    """The splits that a run's config names, each once."""
    splits = run.config.splits
    return list(dict.fromkeys(split for split in (splits.train, splits.validate_, splits.test) if split))


def check_modalities(names: Sequence[str]) -> tuple[str, ...]:
    """The modalities in their order, or an error that names the wrong one."""
    if wrong := [name for name in names if name not in MODALITIES]:
        raise ValueError(f"there is no modality {wrong[0]!r}; a run has a and b")
    if not names:
        raise ValueError("name at least one modality to index: a, b or both")
    return tuple(name for name in MODALITIES if name in names)


def _present(gathered: Mapping[str, Gathered], wanted: tuple[str, ...], explicit: bool) -> tuple[str, ...]:
    """The modalities that shards have; one that was asked for and is absent is an error."""
    present = tuple(name for name in wanted if gathered[name].items)
    if (explicit and present != wanted) or not present:
        raise ValueError(f"the shards have no vectors of modality {' or '.join(set(wanted) - set(present))}")
    return present


def open_backend(meta: Mapping[str, Any], folder: Path, modality: str) -> Index:
    """The saved index of a modality."""
    if meta["backend"] == "milvus":
        from crossclr.search.index.milvus_index import MilvusIndex

        return MilvusIndex.open(folder / modality)
    return FaissIndex.open(folder / modality)


def _new_index(
    backend: str, dim: int, settings: IndexSettings | None, uri: str | None, run: Run, modality: str
) -> Index:
    if backend == "faiss":
        return FaissIndex(dim, settings)
    if not uri:
        raise ValueError("the Milvus back end needs --uri: the address of a server, or a file that ends in .db")
    from crossclr.search.index.milvus_index import MilvusIndex

    name = "".join(character if character.isalnum() else "_" for character in run.config.name)
    return MilvusIndex(dim, uri, f"crossclr_{name}_{modality}", fresh=True)


def _place(
    items: Items, gathered: Mapping[str, Gathered], numbers: Mapping[str, np.ndarray[Any, np.dtype[np.int64]]]
) -> None:
    vectors = np.concatenate([found.vectors for found in gathered.values()])
    modality = np.concatenate([np.full(len(found.items), place) for place, found in enumerate(gathered.values())])
    ids = np.concatenate([numbers[name] for name in gathered])
    places = project(vectors, modality.astype(np.int64))
    items.set_columns(ids.tolist(), {"x": places[:, 0].tolist(), "y": places[:, 1].tolist()})


def _places_among(items: Items, index: Index, found: Gathered, meta: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Places of new items among those that are on the map already."""
    known = items.columns("id", "x", "y", where=found.items[0].modality)[:5000]
    if not known:
        return np.full((len(found.items), 2), 0.5)
    vectors = index.vectors(np.array([row[0] for row in known]))[:, : meta["dim"]]
    both = centre(np.concatenate([vectors, found.vectors]), np.zeros(len(known) + len(found.items), dtype=np.int64))
    places = np.array([row[1:] for row in known], dtype=np.float32)
    return place_among(both[len(known) :], both[: len(known)], places)


def _finish(folder: Path, items: Items, indexes: Mapping[str, Index], meta: dict[str, Any]) -> None:
    """Everything that is computed from the items as they are now."""
    rows = items.columns("id", "split", "group")
    splits, groups = (sorted({row[place] for row in rows if row[place]}) for place in (1, 2))
    split_code, group_code = ({name: code for code, name in enumerate(names)} for names in (splits, groups))
    codes = np.full((max((row[0] for row in rows), default=-1) + 1, 2), -1, dtype=np.int32)
    if rows:
        codes[[row[0] for row in rows]] = [(split_code.get(row[1], -1), group_code.get(row[2], -1)) for row in rows]
    np.save(folder / CODES, codes)
    meta["splits"], meta["groups"] = splits, groups
    for modality, index in indexes.items():
        about = meta["modalities"][modality]
        about["count"] = len(index)
        about["kind"], about["recall"] = getattr(index, "kind", "server"), getattr(index, "recall", None)
        about["media"] = sorted({row[0] for row in items.columns("media", where=modality) if row[0]})
    (folder / MAP).write_text(json.dumps(_map(items), separators=(",", ":"), ensure_ascii=False), encoding="utf-8")
    (folder / META).write_text(json.dumps(meta, indent=1, ensure_ascii=False), encoding="utf-8")
    items.close()


def _map(items: Items) -> dict[str, list[Any]]:
    """The points that the page draws; a regular part of each modality where there are many."""
    rows: list[tuple[Any, ...]] = []
    parts = [items.columns("name", "modality", "text", "x", "y", "group", "split", where=name) for name in MODALITIES]
    left = MAP_POINTS
    for number, part in enumerate(sorted(parts, key=len)):  # the smaller one first: it leaves room for the larger one
        share = left // (len(parts) - number)
        chosen = np.unique(np.linspace(0, len(part) - 1, min(share, len(part))).astype(int)).tolist() if part else []
        rows += [part[place] for place in chosen]
        left -= len(chosen)
    return {
        "name": [row[0] for row in rows],
        "modality": [row[1] for row in rows],
        "text": [_shortened(row[2]) for row in rows],
        "x": [round(row[3], 4) for row in rows],
        "y": [round(row[4], 4) for row in rows],
        "group": [row[5] for row in rows],
        "split": [row[6] for row in rows],
    }


def _shortened(text: str) -> str:
    return text if len(text) <= 70 else text[:69] + "…"


def _label(run: Run, modality: str, found: Gathered) -> str:
    """What the page calls the items of a modality."""
    kinds = {item.media for item in found.items if item.media}
    if len(kinds) == 1:
        return {"image": "images", "video": "videos", "audio": "sounds"}[kinds.pop()]
    if text_side(run.config) == modality:
        return "texts"
    return f"{run.config.data.modalities['ab'.index(modality)]}s"


def _report(progress: Progress | None, what: str, done: int, total: int) -> None:
    if progress is not None:
        progress(what, done, total)
