"""Build the index of a run, next to the run."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from crossclr.features.sources.emoji import is_built_in
from crossclr.search.building.hubness import apply_correction, with_correction
from crossclr.search.building.index_files import FORMAT, INDEX, ITEMS, write_index
from crossclr.search.building.item_map import place_items
from crossclr.search.building.item_statistics import describe_items, other_modality
from crossclr.search.building.previews import make_previews
from crossclr.search.building.run_items import MODALITIES, EmbeddedItems, Progress, embed_items
from crossclr.search.encoders.onnx_export import write_query_encoder
from crossclr.search.encoders.text_queries import text_side
from crossclr.search.index.contract import Ids, Index
from crossclr.search.index.faiss_graph import IndexSettings
from crossclr.search.index.faiss_index import FaissIndex
from crossclr.search.index.generations import new_generation
from crossclr.search.items.item_table import Items
from crossclr.search.items.media_files import MediaFinder
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
    hubness: bool = False,
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
        modalities: modalities to index, by name or as ``a`` and ``b``. Default: both, or those that the shards contain.
        media: where images, videos or sounds are (see `MediaFinder`).
        backend: ``faiss``, or ``milvus`` with a ``uri``.
        uri: address of the Milvus server, or a ``.db`` file.
        hubness: correct scores against hubs, estimated from the items of the index.
        settings: how to build the faiss index.
        batch_size: samples to embed at once.
        device: where to embed.
        progress: called with the task, the steps done and all steps.

    Returns:
        the folder of the index.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    if len(run.config.data.modality_names) != len(MODALITIES):
        raise ValueError(
            f"an index has two modalities, but this run has {', '.join(run.config.data.modality_names)}; embed it with "
            "`crossclr embed` instead"
        )
    names = dict(zip(MODALITIES, run.config.data.modality_names, strict=True))
    wanted = check_modalities(MODALITIES if modalities is None else modalities, names)
    if shards is not None and (splits or media):
        raise ValueError("shards contain all that is indexed; give them without splits and media")
    model = run.load_space()
    if shards is None:
        source = run.open_source()
        finder = MediaFinder(source, media)
        chosen = list(splits) if splits else default_splits(run)
        for split in chosen:
            source.keys(split)  # reports an unknown name before anything is written
    with new_generation(run.path / INDEX) as folder:
        if shards is None:
            found = embed_items(model, source, chosen, finder, batch_size, device, progress)
        else:
            from crossclr.search.building.shard_items import read_shard_items  # large, and rarely used

            found = read_shard_items(shards, model.embedding_dim, run.digest(), progress)
            wanted = _present(found, wanted, names, explicit=modalities is not None)
        meta: dict[str, Any] = {
            "format": FORMAT,
            "name": run.config.name,
            "about": run.config.about,
            "weights": run.digest(),
            "dim": int(found["a"].vectors.shape[1]),
            "text_side": text_side(run.config),
            "validation": run.config.splits.validate_,
            "media_roots": sorted(finder.roots) if shards is None else [],
            "hubness": hubness,
            "backend": backend,
            "modality_names": names,
            "modalities": {name: {"label": label} for name, label in _labels(names, found, wanted).items()},
        }
        make_previews(run.path, [found[name] for name in wanted], progress)
        _report(progress, "building the index", 0)
        ids = _number(found, wanted)
        new_index = partial(_new_index, meta, settings, uri)
        indexes = {name: _fill(new_index, name, ids[name], found, meta["hubness"]) for name in wanted}
        _report(progress, "counting hubs", 1)
        items = Items(folder / ITEMS, writable=True)
        describe_items(items, indexes, found, ids, meta)
        _report(progress, "drawing the map", 2)
        place_items(items, {name: found[name] for name in wanted}, ids)
        write_query_encoder(model, folder)
        write_index(folder, items, indexes, meta)
        _report(progress, "drawing the map", 3)
    return run.path / INDEX


def default_splits(run: Run) -> list[str]:
    """The splits that a run's config names, each once."""
    splits = run.config.splits
    return list(dict.fromkeys(split for split in (splits.train, splits.validate_, splits.test) if split))


def check_modalities(chosen: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Modalities, given by letter or name, as letters in their order.

    Example:
        >>> check_modalities(["text", "a"], {"a": "video", "b": "text"})
        ('a', 'b')
    """
    letters = {name: letter for letter, name in names.items()}
    found = [letters.get(one, one) for one in chosen]
    if wrong := [one for one in found if one not in names]:
        raise ValueError(f"there is no modality {wrong[0]!r}; the run has {' and '.join(names.values())}")
    if not found:
        raise ValueError(f"choose at least one modality to index: {' or '.join(names.values())}")
    return tuple(letter for letter in names if letter in found)


def _present(
    found: Mapping[str, EmbeddedItems], wanted: tuple[str, ...], names: Mapping[str, str], explicit: bool
) -> tuple[str, ...]:
    """The modalities that shards contain; it is an error if one that was requested explicitly is absent."""
    present = tuple(name for name in wanted if found[name].items)
    if (explicit and present != wanted) or not present:
        absent = [names[name] for name in wanted if name not in present]
        raise ValueError(f"the shards have no vectors of {' or '.join(absent)}")
    return present


def _number(found: Mapping[str, EmbeddedItems], wanted: Sequence[str]) -> dict[str, Ids]:
    ids, first = {}, 0
    for name in wanted:
        ids[name] = np.arange(first, first + len(found[name].items), dtype=np.int64)
        first += len(ids[name])
    return ids


def _fill(
    new_index: Callable[[str, int], Index],
    name: str,
    ids: Ids,
    found: Mapping[str, EmbeddedItems],
    hubness: bool,
) -> Index:
    queries = found[other_modality(name)].vectors
    rows = with_correction(found[name].vectors, queries, hubness)
    index = new_index(name, rows.shape[1])
    index.add(ids, rows)
    index.compact(apply_correction(queries, hubness))
    return index


def _new_index(meta: Mapping[str, Any], settings: IndexSettings | None, uri: str | None, name: str, dim: int) -> Index:
    if meta["backend"] == "faiss":
        return FaissIndex(dim, settings)
    if not uri:
        raise ValueError("the Milvus back end needs --uri: the address of a server, or a file that ends in .db")
    from crossclr.search.index.milvus_index import MilvusIndex

    run = "".join(character if character.isalnum() else "_" for character in meta["name"])
    return MilvusIndex(dim, uri, f"crossclr_{run}_{name}", fresh=True)


def _labels(names: Mapping[str, str], found: Mapping[str, EmbeddedItems], wanted: Sequence[str]) -> dict[str, str]:
    """What the page calls the items of each modality, such as ``videos``."""
    labels = {}
    for letter in wanted:
        kinds = {item.media for item in found[letter].items if item.media} or {names[letter]}
        kind = kinds.pop() if len(kinds) == 1 else "clip"
        files = [item.file for item in found[letter].items if item.file and not is_built_in(item.file)]
        if kind in ("video", "audio") and len(set(files)) < len(files):
            kind = "moment"  # several items lie in one file
        labels[letter] = "sounds" if kind == "audio" else f"{kind}s"
    if len(set(labels.values())) < len(labels):
        return {letter: f"{names[letter]} {label}" for letter, label in labels.items()}
    return labels


def _report(progress: Progress | None, task: str, done: int) -> None:
    if progress is not None:
        progress(task, done, 3)
