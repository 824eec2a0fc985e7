"""Two processes and one, shards and a full shuffle: equal results up to the noise of seeds.

    python -m benchmarks.scale_training                 the built-in set
    python -m benchmarks.scale_training msvd            another shipped config (its data is looked for as always)
    python -m benchmarks.scale_training emoji shards    only the one, or only: processes

Shards are the worst case: samples sorted by their group, small row groups, few of them mixed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from crossclr.data import Dataset, open_data
from crossclr.training import Run, load_config

SEEDS = (0, 1, 2, 3, 4)
GROUP, WINDOW = 50, 4


def write_shards(data: Dataset, path: Path) -> None:
    """Samples as one file, sorted by group, each clip once with its first sentence."""
    samples = sorted((data[place] for place in range(len(data))), key=lambda sample: (sample.group, sample.key))
    columns: dict[str, Any] = {
        "id": [sample.key for sample in samples],
        "image": [np.asarray(sample["image"].clips[0]).tolist() for sample in samples],
        "text_features": [np.asarray(sample["text"].clips[0]).tolist() for sample in samples],
    }
    pq.write_table(pa.table(columns), path, row_group_size=GROUP)


def recall(config: str, folder: Path, name: str, *options: str) -> list[float]:
    """R@1 (mean of both directions) of every seed, trained with the command line in separate processes."""
    command = [
        sys.executable,
        "-m",
        "crossclr",
        "train",
        config,
        "--recipe",
        "paper",
        "--no-baseline",
        "--seeds",
        ",".join(map(str, SEEDS)),
    ]
    done = subprocess.run(
        [*command, "--out", str(folder / name), *options], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = []
    for seed in SEEDS:
        test = (Run.open(folder / name / f"seed-{seed}").results or {})["test"]
        found.append(statistics.fmean(scores["R@1"] for key, scores in test.items() if key.startswith("clip/")))
    return found


def run(config: str = "emoji", *parts: str) -> dict[str, float]:
    """Mean R@1 and its standard deviation over seeds."""
    results: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="crossclr-scale-") as made:
        folder = Path(made)
        if not parts or "processes" in parts:
            results["one_process"] = recall(config, folder, "one")
            results["two_processes"] = recall(config, folder, "two", "--devices", "2", "--set", "training.threads=1")
        if not parts or "shards" in parts:
            results |= from_shards(config, folder)
    summary = {}
    for name, found in results.items():
        summary[f"{name}_r1"] = statistics.fmean(found)
        summary[f"{name}_r1_std"] = statistics.stdev(found)
    return summary


def from_shards(config: str, folder: Path) -> dict[str, list[float]]:
    """R@1 of every seed with a full shuffle, and with windows of a few row groups."""
    results = {}
    loaded = load_config(config, ["recipe=paper"])
    data = open_data(loaded.data)
    splits = dict.fromkeys(s for s in (loaded.splits.train, loaded.splits.validate_, loaded.splits.test) if s)
    for split in splits:
        write_shards(data.where(split=split), folder / f"{split}.parquet")
    shards = {split: str(folder / f"{split}.parquet") for split in splits}
    values = loaded.model_dump(mode="json", by_alias=True)
    for name, window in (("full_shuffle", 1_000_000), ("windows", WINDOW)):
        values["data"] = {"kind": "shards", "shards": shards, "modalities": {"image": {}, "text": {}}, "window": window}
        values["training"]["in_memory"] = False  # else everything is read first and shuffled as a whole
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
        results[name] = recall(str(folder / f"{name}.yaml"), folder, name)
    return results


if __name__ == "__main__":
    for name, value in run(*sys.argv[1:]).items():
        print(f"{name:28s}{value:10.2f}")
