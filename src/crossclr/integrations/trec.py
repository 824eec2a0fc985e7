"""Embeddings as files that other programs read: runs and qrels of TREC, and Parquet with vectors of fixed size."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.nn.functional import normalize

from crossclr.evaluation.metrics import targets_between
from crossclr.models.directions import Direction, directions_of
from crossclr.models.embeddings import Embeddings
from crossclr.models.similarity import similarity_matrix
from crossclr.storage import new_file, new_folder

DEPTH = 1000  # results of a query, as usual at TREC
BLOCK = 256  # queries whose scores are in memory


def write_trec(embeddings: Embeddings, folder: Path, tag: str = "crossclr", depth: int = DEPTH) -> list[Path]:
    """Write ``QUERY-to-SEARCHED.run`` and ``.qrels`` for every direction between clips; returns the files.

    A document is an item of the searched modality, and relevant if it belongs to the query's clip or shows the same
    concept. With one relevant document for each query, R@K of `crossclr evaluate` is TREC's recall at K; with several,
    it is the success at K.

    Args:
        embeddings: as `embed_run` returns them.
        folder: where to write.
        tag: name of the run in the files.
        depth: results of a query.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for key in directions_of(embeddings.names, "clip"):
        direction = Direction.parse(key)
        queries, items = embeddings[direction.query], embeddings[direction.searched]
        labels = torch.arange(len(embeddings.clip_keys))
        if embeddings.concepts is not None:
            labels = torch.unique(embeddings.concepts, return_inverse=True)[1]
        asked, targets = targets_between(labels[queries.clip_of], labels[items.clip_of])
        if not len(asked):
            continue
        names = [_names(embeddings.clip_keys, one.clip_of) for one in (queries, items)]
        asked_names = [names[0][row] for row in asked.tolist()]
        stem = f"{quote(direction.query, safe='')}-to-{quote(direction.searched, safe='')}"
        rows = zip(targets.owners.tolist(), targets.columns.tolist(), strict=True)
        qrels = (f"{asked_names[owner]} 0 {names[1][column]} 1\n" for owner, column in rows)
        ranked = _ranked(queries.rows[asked], items.gallery, embeddings.expert_count, depth)
        run = (
            f"{asked_names[query]} Q0 {names[1][item]} {rank} {score:.9g} {tag}\n"
            for query, rank, item, score in ranked
        )
        for path, lines in ((folder / f"{stem}.qrels", qrels), (folder / f"{stem}.run", run)):
            with new_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
                file.writelines(lines)
            written.append(path)
    return written


def write_parquet(embeddings: Embeddings, folder: Path) -> Path:
    """Write a Parquet file for each modality: key, text, and unit vectors as query and item, lists of fixed size.

    The weighted vectors of several experts side by side keep their lengths.
    """
    with new_folder(folder) as partial:
        for name, vectors in embeddings.modalities.items():
            table = {
                "key": pa.array([embeddings.clip_keys[clip] for clip in vectors.clip_of.tolist()]),
                "text": pa.array(vectors.texts or [None] * len(vectors.rows), pa.string()),
                "query": _fixed_size(vectors.rows, embeddings.expert_count),
                "item": _fixed_size(vectors.gallery, embeddings.expert_count),
            }
            pq.write_table(pa.table(table), partial / f"{quote(name, safe='')}.parquet")
    return folder


def _fixed_size(rows: Tensor, experts: int) -> pa.Array:
    vectors = (normalize(rows, dim=1) if experts == 1 else rows).numpy().astype(np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])


def _names(keys: Sequence[str], clip_of: Tensor) -> list[str]:
    """A name without spaces for each row: the key of its clip, and a number if the clip has several rows."""
    counts = torch.bincount(clip_of, minlength=len(keys)).tolist()
    seen: dict[int, int] = {}
    names = []
    for clip in clip_of.tolist():
        seen[clip] = seen.get(clip, -1) + 1
        names.append(quote(keys[clip], safe="/:") + (f"#{seen[clip]}" if counts[clip] > 1 else ""))
    return names


def _ranked(queries: Tensor, items: Tensor, experts: int, depth: int) -> Iterator[tuple[int, int, int, float]]:
    """Query, rank from 1, item and score of the best items, in float64."""
    unit = [(normalize(rows, dim=1) if experts == 1 else rows).double() for rows in (queries, items)]
    for start in range(0, len(queries), BLOCK):
        scores = similarity_matrix(unit[0][start : start + BLOCK], unit[1], experts)
        best = scores.topk(min(depth, scores.shape[1]), dim=1)
        for query, (values, places) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True), start):
            for rank, (value, place) in enumerate(zip(values, places, strict=True), 1):
                yield query, rank, place, value
