"""Items and vectors from shards of embeddings, as `crossclr embed` writes them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from crossclr.evaluation.export.bulk import MARK
from crossclr.features import DataError
from crossclr.features.reading.shard_files import ShardRows, find_shards, open_shard
from crossclr.models import Anchors
from crossclr.search.building.run_items import MODALITIES, Gathered, Progress, unit
from crossclr.search.index.contract import Vectors
from crossclr.search.items.item_table import Item


def gather_shards(
    shards: Sequence[str | Path],
    dim: int,
    weights: str,
    progress: Progress | None = None,
    anchors: Anchors | None = None,
) -> dict[str, Gathered]:
    """Items of both modalities of the shards named; a modality that they lack has none.

    Samples with the same id are one clip: its items after the first are numbered, ``b/id#2``.

    Args:
        shards: files, patterns or folders.
        dim: channels of the model's embeddings.
        weights: digest of the model's weights; the shards must be of the same.
        progress: called with what is being done, how much is done and how much there is.
        anchors: of the run. Shards hold clips where the encoder put them, an index where sentences shall find them.

    Raises:
        DataError: the vectors have another size.
        ValueError: the shards were made by another model.
    """
    paths = find_shards(shards)
    for folder in {path.parent for path in paths}:
        mark = folder / MARK
        if mark.is_file() and json.loads(mark.read_text())["weights"] != weights:
            raise ValueError(f"the embeddings in {folder} are of other weights than the run's; embed the shards again")
    items: dict[str, list[Item]] = {name: [] for name in MODALITIES}
    vectors: dict[str, list[Vectors]] = {name: [] for name in MODALITIES}
    seen: dict[str, dict[str, int]] = {name: defaultdict(int) for name in MODALITIES}
    for done, path in enumerate(paths):
        shard = open_shard(path)
        for number in range(len(shard.blocks)):
            block = shard.read(number)
            for modality, rows in (("a", block.a), ("b", block.b)):
                if rows is None:
                    continue
                found = _vectors(path, rows, len(block), dim)
                if modality == "a" and anchors is not None:
                    found = unit(anchors(torch.from_numpy(found)).numpy())
                vectors[modality].append(found)
                for place, key in enumerate(block.ids):
                    seen[modality][key] += 1
                    times = seen[modality][key]
                    name = f"{modality}/{key}" + (f"#{times}" if times > 1 else "")
                    text = block.texts[place] if block.texts else ""
                    group = block.groups[place] if block.groups else ""
                    items[modality].append(Item(-1, name, modality, key, text, path.stem, group))
        if progress is not None:
            progress("reading shards", done + 1, len(paths))
    return {name: _gathered(items[name], vectors[name], dim) for name in MODALITIES}


def _vectors(path: Path, rows: ShardRows, count: int, dim: int) -> Vectors:
    if rows.values.shape != (count, dim):
        raise DataError(
            f"{path}: {rows.values.shape[0]} vectors of {rows.values.shape[1]} for {count} samples, but the model "
            f"gives one of {dim} for each; are these features? `crossclr embed --shards` makes embeddings of them"
        )
    return unit(np.asarray(rows.values, dtype=np.float32))


def _gathered(items: list[Item], vectors: list[Vectors], dim: int) -> Gathered:
    joined = np.concatenate(vectors) if vectors else np.zeros((0, dim), dtype=np.float32)
    return Gathered(items, joined, np.zeros((len(items), 1), dtype=np.float32))  # inputs are not known any more
