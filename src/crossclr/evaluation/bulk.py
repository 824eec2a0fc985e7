"""Embedding shard by shard: any number of samples in the memory of one block, and nothing is repeated.

Each shard of features becomes a Parquet file of the same name with ``id``, the columns of the modalities (raw
embeddings) and the ``text`` and ``group`` of its input. It is written under another name and renamed, so a file that is
there is complete: a second call, or another machine that takes over, embeds only what is missing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from crossclr.data import DataError, Inputs, Ragged, ShardsConfig
from crossclr.data.kinds import column_of
from crossclr.data.sequences import checked_rows
from crossclr.data.shards import BlockRows, Shard, find_shards, open_shard
from crossclr.models import SearchSpace
from crossclr.progress_bar import Progress
from crossclr.storage import new_file, write_json
from crossclr.storage.reading import read_json_object
from crossclr.training import Run, RunConfig

MARK = "embedding.json"  # what the files of a folder were made with
Checkpoint = Literal["best", "last"]


def embed_shards(
    run: Run | str | Path,
    shards: Sequence[str | Path],
    out: str | Path,
    *,
    engine: Literal["local", "ray"] = "local",
    which: Checkpoint = "best",
    batch_size: int = 256,
    device: str = "cpu",
    workers: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Embed shards of features into shards of embeddings; existing ones are skipped.

    Args:
        run: a trained run, or its folder.
        shards: files, patterns or folders of Parquet or HDF5 shards (see `crossclr.data.shards`).
        out: folder of the result; on a cluster, one that all machines share.
        engine: ``local`` works in this process, ``ray`` on a Ray cluster.
        which: the checkpoint.
        batch_size: samples embedded at once.
        device: where to compute.
        workers: Ray: shards embedded at the same time; None: one for each CPU of the cluster.
        address: Ray: address of a running cluster, or ``auto``; None starts one on this machine.
        progress: called after each shard with the number done and the total.

    Returns:
        ``shards`` and ``samples`` in the result, and ``embedded``: the number of shards that this call embedded.

    Raises:
        DataError: a shard cannot be read, or does not fit the model.
        ValueError: the folder holds embeddings of another model.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    paths = find_shards(shards)
    folder = Path(out)
    _mark(folder, run, which)
    done = {path for path in paths if target_of(path, folder).is_file()}
    missing = [path for path in paths if path not in done]
    if progress is not None:
        progress(len(done), len(paths))
    finished = len(done)
    stream: Iterable[Any]
    if engine == "ray":
        from crossclr.evaluation.bulk_ray import embed_with_ray

        stream = embed_with_ray(run.path, missing, folder, which, batch_size, device, workers, address)
    else:
        stream = (embed_one(str(run.path), path, folder, which, batch_size, device) for path in missing)
    for _ in stream:
        finished += 1
        if progress is not None:
            progress(finished, len(paths))
    absent = [path.name for path in paths if not target_of(path, folder).is_file()]
    if absent:
        raise RuntimeError(f"{len(absent)} shards were not embedded (first: {absent[0]}); run the command again")
    samples = sum(pq.read_metadata(target_of(path, folder)).num_rows for path in paths)
    return {"shards": len(paths), "samples": samples, "embedded": len(missing)}


def embed_one(run: str, path: Path, folder: Path, which: Checkpoint, batch_size: int, device: str) -> int:
    """Embed one shard, unless its result exists; returns the number of its samples."""
    target = target_of(path, folder)
    if target.is_file():
        return int(pq.read_metadata(target).num_rows)
    opened = Run.open(run)
    names = shard_columns(opened.config)
    shard, model = open_shard(path, tuple(names.values())), _model(run, opened.digest(which), which, device)
    samples = 0
    writer: pq.ParquetWriter | None = None
    with new_file(target) as partial:  # two workers that did the same work replace a file by an equal one
        try:
            for block in embed_blocks(model, shard, names, batch_size, device):
                writer = writer or pq.ParquetWriter(partial, block.schema)
                writer.write_table(block, row_group_size=len(block))
                samples += len(block)
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise DataError(f"{path}: the shard has no samples; omit it")
    return samples


def shard_columns(config: RunConfig) -> dict[str, str]:
    """The column of each modality in shards: as in the run's own shards, or after its name."""
    data = config.data
    return data.columns if isinstance(data, ShardsConfig) else {name: column_of(name) for name in data.modality_names}


def embed_blocks(
    model: SearchSpace, shard: Shard, names: Mapping[str, str], batch_size: int, device: str
) -> Iterator[pa.Table]:
    """The embeddings of a shard, block by block; they do not depend on the batch size."""
    for number in range(len(shard.blocks)):
        block = shard.read(number)
        columns: dict[str, Any] = {"id": block.words["id"]}
        for modality, column in names.items():
            if column in block.rows:
                rows = block.rows[column]
                vectors = _encode(model, modality, shard.path, rows.without_gaps(), batch_size, device)
                columns[column] = _lists(vectors, rows.present)
        columns |= {name: block.words[name] for name in ("text", "group") if name in block.words}
        yield pa.table(columns)


def target_of(path: Path, folder: Path) -> Path:
    """The file of a shard's embeddings."""
    return folder / f"{path.stem}.parquet"


@lru_cache(maxsize=1)
def _model(run: str, digest: str, which: Checkpoint, device: str) -> SearchSpace:
    """The model of a run with these weights, loaded once in a process."""
    return Run.open(run).load_space(which).to(device)


def _encode(model: SearchSpace, modality: str, path: Path, rows: BlockRows, batch_size: int, device: str) -> Tensor:
    wanted = model.dims[modality]
    if not rows.present.any():  # the width of the vectors is needed all the same
        blank = BlockRows(np.zeros((1, wanted), np.float32), np.array([0, 1]))
        return _encode(model, modality, path, blank, batch_size, device)[:0]
    values = np.require(checked_rows(rows.values, path, "block"), requirements=["C", "W"])
    sequences = Ragged(torch.from_numpy(values), torch.from_numpy(np.diff(rows.offsets).astype(np.int64)))
    if sequences.dim != wanted:
        raise DataError(f"{path}: {modality} has {sequences.dim} channels but the model was trained on {wanted}")
    found = []
    with torch.inference_mode():
        for start in range(0, len(sequences), batch_size):
            part = sequences.select(torch.arange(start, min(start + batch_size, len(sequences))))
            encoded = model.encode_modality(modality, Inputs(part).to(device))
            found.append(encoded.get("items", encoded["clip"]).to("cpu", torch.float32))
    return torch.cat(found)


def _lists(vectors: Tensor, present: npt.NDArray[np.bool_]) -> pa.Array:
    every = np.zeros((len(present), vectors.shape[1]), np.float32)
    every[present] = vectors.numpy()
    return pa.FixedSizeListArray.from_arrays(pa.array(every.reshape(-1)), every.shape[1], mask=pa.array(~present))


def _mark(folder: Path, run: Run, which: Checkpoint) -> None:
    """Create the folder, or check that it belongs to the same weights; remove leftovers."""
    digest = run.digest(which)
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MARK
    if mark.is_file():
        if read_json_object(mark).get("weights") != digest:
            raise ValueError(f"{folder} holds embeddings of another model; choose another --out, or remove it")
    elif any(folder.glob("*.parquet")):
        raise ValueError(f"{folder} holds other Parquet files; choose a folder for the embeddings alone")
    else:
        write_json(mark, {"weights": digest, "run": run.config.name, "checkpoint": which})
