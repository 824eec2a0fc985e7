"""Bulk embedding with Ray: 1,000,000 samples on two nodes of this machine, one of them killed; one worker and two.

    python -m benchmarks.scale_embed                    about ten minutes on two cores
    python -m benchmarks.scale_embed --samples 100000

The features are vectors of 512 and 384 channels in Parquet shards of 10,000 samples, in a temporary folder (3.6 GB for
a million). The result of the cluster that lost a node is compared with that of this process, id by id.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

SAMPLES, SHARD, DIMS = 1_000_000, 10_000, {"video": 512, "text": 384}
COLUMNS = ("video", "text_features")


def write_features(folder: Path, samples: int) -> None:
    """Shards of random features with consecutive ids."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number, start in enumerate(range(0, samples, SHARD)):
        count = min(SHARD, samples - start)
        columns: dict[str, Any] = {"id": pa.array([f"s{place}" for place in range(start, start + count)])}
        for column, dim in zip(COLUMNS, DIMS.values(), strict=True):
            values = rng.standard_normal(count * dim, dtype=np.float32)
            columns[column] = pa.FixedSizeListArray.from_arrays(pa.array(values), dim)
        pq.write_table(pa.table(columns), folder / f"part{number:05}.parquet", row_group_size=2000)


def make_run(folder: Path) -> Path:
    """A run with an untrained model of the size of the shipped configs."""
    from crossclr.data import open_data
    from crossclr.models import build_model
    from crossclr.training.config_files import check_config
    from crossclr.training.run import Run

    encoder = {"kind": "mlp", "blocks": 1}
    data = {"kind": "shards", "shards": {"train": str(folder / "features")}}
    config = check_config({"data": data, "model": {"dim": 512, "encoder": encoder}})
    torch.manual_seed(0)
    model = build_model(config.model, DIMS, two_level=False)
    run = Run.create(folder / "run", config, open_data(config.data), model, {})
    shutil.copytree(run.path / "last", run.path / "best")
    return run.path


def same(one: Path, other: Path) -> bool:
    """Whether two folders hold the same ids once each, in the same order, with equal vectors up to rounding."""
    seen: set[str] = set()
    for path in sorted(one.glob("*.parquet")):
        left, right = pq.read_table(path), pq.read_table(other / path.name)
        ids = left.column("id").to_pylist()
        if ids != right.column("id").to_pylist() or seen & set(ids):
            return False
        seen.update(ids)
        for column in COLUMNS:
            pair = [np.asarray(table.column(column).combine_chunks().flatten()) for table in (left, right)]
            if not np.allclose(pair[0], pair[1], atol=1e-5):
                return False
    return len(list(one.glob("*.parquet"))) == len(list(other.glob("*.parquet")))


def run(samples: int = SAMPLES) -> dict[str, float]:
    """Samples per second with one worker and with two, and whether a lost node changed the result (1: it did not)."""
    import ray
    from ray.cluster_utils import Cluster

    from crossclr.evaluation.bulk import embed_shards

    folder = Path(tempfile.mkdtemp(prefix="crossclr-scale-"))
    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    second = cluster.add_node(**small)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        write_features(folder / "features", samples)
        path = make_run(folder)
        taken = {1: 0.0, 2: 0.0}
        part = sorted((folder / "features").iterdir())[: max(4, samples // SHARD * 2 // 5)]
        embed_shards(path, part[:2], folder / "warm", engine="ray", workers=2, batch_size=512)
        for workers in (1, 2, 1, 2):  # in turns, so that a busy moment of the machine hits both
            start = time.perf_counter()
            embed_shards(path, part, folder / "timed", engine="ray", workers=workers, batch_size=512)
            taken[workers] += time.perf_counter() - start
            shutil.rmtree(folder / "timed")
        rates = {workers: 2 * len(part) * SHARD / seconds for workers, seconds in taken.items()}
        killed = False

        def kill(done: int, total: int) -> None:
            nonlocal killed
            if not killed and done >= total // 3:
                cluster.remove_node(second, allow_graceful=False)
                killed = True

        start = time.perf_counter()
        features = [folder / "features"]
        embed_shards(path, features, folder / "lost", engine="ray", workers=2, batch_size=512, progress=kill)
        seconds = time.perf_counter() - start
        torch.set_num_threads(1)
        embed_shards(path, features, folder / "alone", batch_size=512)
        return {
            "one_worker_samples_a_second": rates[1],
            "two_workers_samples_a_second": rates[2],
            "two_workers_over_one": rates[2] / rates[1],
            "samples": float(samples),
            "seconds_with_a_lost_node": seconds,
            "result_is_that_of_one_process": float(killed and same(folder / "lost", folder / "alone")),
        }
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    for name, value in run(parser.parse_args().samples).items():
        print(f"{name:36s}{value:14.2f}")
