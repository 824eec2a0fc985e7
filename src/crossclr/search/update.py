"""Change an index without rebuilding it: add, replace and delete items."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossclr.search.confidence import Encoder
from crossclr.search.create import extracted_media
from crossclr.search.generations import current_generation, new_generation
from crossclr.search.index import Index
from crossclr.search.index_files import INDEX, ITEMS, open_backend, read_meta, write_index
from crossclr.search.item_map import place_new_items
from crossclr.search.items import Items
from crossclr.search.onnx_queries import QUERY_ENCODER
from crossclr.search.previews import make_previews
from crossclr.search.run_items import EmbeddedItems, MediaFinder, Progress, embed_items
from crossclr.search.text_queries import trial_encoder
from crossclr.training import Run


@dataclass
class Changes:
    """How many items an update added, replaced and deleted."""

    added: int = 0
    replaced: int = 0
    deleted: int = 0


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
    before = current_generation(run.path / INDEX)
    if before is None:
        raise FileNotFoundError(f"{run.path} has no index yet; build it with: crossclr index {run.path}")
    meta = read_meta(before)
    if (splits or added) and meta["weights"] != run.digest():
        raise ValueError(f"the index in {before} was built from other weights than the run has now; rebuild it")
    encoder: Encoder | None = None
    changes, media_roots = Changes(), {*meta["media_roots"], *map(str, roots)}
    with new_generation(run.path / INDEX) as folder:
        kept = Items(before / ITEMS)
        items = kept.copy_to(folder / ITEMS)
        kept.close()
        indexes = {name: open_backend(meta, before, name) for name in meta["modalities"]}
        for name in delete:
            changes.deleted += _delete(items, indexes, name)
        for gathered in [added] if added else []:
            _join(run, items, indexes, gathered, meta, changes, progress)
        if splits:
            data, finder = run.open_data(), MediaFinder(media or extracted_media(run))
            model = run.load_space()
            encoder = trial_encoder(model, meta["text_modality"], before)
            gathered = embed_items(model, data, splits, finder, batch_size, device, progress)
            _join(run, items, indexes, gathered, meta, changes, progress)
            media_roots |= finder.roots
        for index in indexes.values():
            index.compact()
        meta["media_roots"] = sorted(media_roots)
        if (before / QUERY_ENCODER).is_file():
            shutil.copy2(before / QUERY_ENCODER, folder)
        write_index(folder, items, indexes, meta, encoder)
    return changes


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
    inputs = meta["modalities"][modality]["inputs"]  # those of deleted and replaced items still count
    inputs["sum"] = (np.asarray(inputs["sum"]) + found.unit_sum(ids >= next_id)).tolist()
    inputs["count"] += len(fresh)
    columns = ids.tolist(), places.tolist(), found.connectivity(inputs).tolist()
    items.put(
        replace(item, id=key, x=x, y=y, connectivity=score)
        for item, key, (x, y), score in zip(found.items, *columns, strict=True)
    )
    changes.added += len(fresh)
    changes.replaced += len(found.items) - len(fresh)
