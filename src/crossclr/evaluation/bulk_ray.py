"""Bulk embedding on a Ray cluster: every shard is a row of a Ray data set.

Ray Data distributes the shards over workers and moves the shards of a lost machine to another one. If two workers embed
the same shard, the result is one file, because it is named after the shard.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from crossclr.evaluation.bulk import Checkpoint, embed_one
from crossclr.extras import requires_extra

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere


class Worker:
    """Holds the model and embeds shards."""

    def __init__(self, run: str, folder: str, which: Checkpoint, batch_size: int, device: str) -> None:
        import pyarrow
        import torch

        torch.set_num_threads(1)  # the cluster counts one CPU for each worker
        pyarrow.set_cpu_count(1)
        self._settings = (which, batch_size, device)
        self._run, self._folder = run, Path(folder)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Embed each shard of a batch (of one)."""
        samples = [embed_one(self._run, Path(path), self._folder, *self._settings) for path in batch["path"]]
        return {"path": batch["path"], "samples": samples}


def embed_with_ray(
    run: Path,
    shards: Sequence[Path],
    folder: Path,
    which: Checkpoint,
    batch_size: int,
    device: str,
    workers: int | None = None,
    address: str | None = None,
) -> Iterator[str]:
    """Embed shards on a cluster; yield the path of each when it is finished."""
    if not shards:
        return
    with requires_extra("ray", "The engine ray"):
        import ray
    own = not ray.is_initialized()
    if own:
        options: dict[str, Any] = {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
        ray.init(log_to_driver=False, logging_level=logging.WARNING, **options)
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
        count = min(workers or cpus, len(shards))
        rows = [{"path": str(path.absolute())} for path in shards]
        # A block for each shard: a lost machine loses only the shards that it was working on.
        embedded = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            Worker,
            fn_constructor_args=(str(run.absolute()), str(folder.absolute()), which, batch_size, device),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=count),
            num_cpus=1,
            num_gpus=1 if device.startswith("cuda") else 0,
        )
        for row in embedded.iter_rows():
            yield str(row["path"])
    finally:
        if own:
            ray.shutdown()
