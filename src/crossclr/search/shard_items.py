"""Items and vectors from shards of embeddings, as `crossclr embed` writes them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from crossclr.data import DataError
from crossclr.data.shards import BlockRows, find_shards, open_shard
from crossclr.evaluation.bulk import MARK
from crossclr.search.index import Vectors, unit
from crossclr.search.items import Item
from crossclr.search.run_items import EmbeddedItems, Progress
from crossclr.storage.reading import read_json_object


def read_shard_items(
    shards: Sequence[str | Path],
    dim: int,
    weights: str,
    columns: Mapping[str, str],
    progress: Progress | None = None,
) -> dict[str, EmbeddedItems]:
    """Items of each modality that the shards contain; ``columns`` says in which column it is.

    Samples with the same id are one clip, whose items after the first are numbered, as in ``text/id#2``.

    The shards must come from the model with these ``weights`` (a digest).

    Raises:
        DataError: the vectors have another size.
        ValueError: another model made the shards.
    """
    paths = find_shards(shards)
    for folder in {path.parent for path in paths}:
        mark = folder / MARK
        if mark.is_file() and read_json_object(mark, "weights")["weights"] != weights:
            raise ValueError(f"the embeddings in {folder} come from other weights; embed the shards again")
    items: dict[str, list[Item]] = {name: [] for name in columns}
    vectors: dict[str, list[Vectors]] = {name: [] for name in columns}
    seen: dict[str, dict[str, int]] = {name: defaultdict(int) for name in columns}
    for done, path in enumerate(paths):
        shard = open_shard(path, tuple(columns.values()))
        for number in range(len(shard.blocks)):
            block = shard.read(number)
            for modality in (name for name, column in columns.items() if column in block.rows):
                rows = block.rows[columns[modality]]
                places = np.flatnonzero(rows.present)
                if len(places):
                    vectors[modality].append(_vectors(path, rows, len(places), dim))
                words = {name: column.to_pylist() for name, column in block.words.items()}
                for place, key in ((place, words["id"][place]) for place in places):
                    seen[modality][key] += 1
                    times = seen[modality][key]
                    name = f"{modality}/{key}" + (f"#{times}" if times > 1 else "")
                    text, group = (words[label][place] if label in words else "" for label in ("text", "group"))
                    items[modality].append(Item(-1, name, modality, key, text, path.stem, group))
        if progress is not None:
            progress("reading shards", done + 1, len(paths))
    return {
        name: EmbeddedItems(  # the inputs are not known, so they are zero
            items[name], np.concatenate(vectors[name]), np.zeros((len(items[name]), 1), dtype=np.float32)
        )
        for name in columns
        if items[name]
    }


def _vectors(path: Path, rows: BlockRows, count: int, dim: int) -> Vectors:
    if rows.values.shape != (count, dim):
        raise DataError(
            f"{path} has {rows.values.shape[0]} vectors of {rows.values.shape[1]} channels for {count} samples, but "
            f"the model makes one of {dim} for each. Embed features first with `crossclr embed --shards`"
        )
    return unit(np.asarray(rows.values, dtype=np.float32))
