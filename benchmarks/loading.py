"""Speed of reading batches from disk at the sizes of YouCook2: 512 channels of video, 1,536 of text, 8 clips per video.

Run: python -m benchmarks.loading [--videos 256] [--json out.json]
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

from crossclr.data import CootConfig, batches, open_data
from crossclr.data.samples import collate


def write(folder: Path, videos: int, seed: int = 0) -> None:
    """A data set in COOT's layout with the lengths of YouCook2 (318 s of video at 0.625 rows per second, 76 words)."""
    rng = np.random.default_rng(seed)
    meta, splits = {}, {}
    with h5py.File(folder / "video.h5", "w") as video, h5py.File(folder / "text.h5", "w") as text:
        for number in range(videos):
            key, clips = f"video{number:05d}", int(np.clip(rng.poisson(7.75), 3, 16))
            duration = float(np.clip(rng.normal(318, 100), 60, 1106))
            edges = np.sort(rng.uniform(0, duration, 2 * clips))
            segments = [{"text": "x", "start_sec": edges[2 * i], "stop_sec": edges[2 * i + 1]} for i in range(clips)]
            meta[key] = {"data_key": key, "duration_sec": duration, "split": "train", "segments": segments}
            video[key] = rng.standard_normal((int(duration * 0.625), 512), dtype=np.float32)
            splits[key] = rng.integers(5, 16, clips).tolist()
            text[key] = rng.standard_normal((sum(splits[key]), 1536), dtype=np.float32)
    (folder / "meta_all.json").write_text(json.dumps(meta))
    (folder / "text_sentence_splits.json").write_text(json.dumps(splits))


def measure(folder: Path) -> dict[str, float]:
    """Milliseconds to read a sample, to collate 64 samples, and to get a batch from the reader threads."""
    data = open_data(CootConfig(root=str(folder), video=["video.h5"], text=["text.h5"])).where(split="train")
    training = data.training(seed=0, epoch=0)
    for place in range(len(data)):  # fill the page cache
        data[place]
    reading, collating = [], []
    for place in range(len(data)):
        start = time.perf_counter()
        training[place]
        reading.append(time.perf_counter() - start)
    samples = [data[place] for place in range(64)]
    for _ in range(10):
        start = time.perf_counter()
        collate(samples)
        collating.append(time.perf_counter() - start)
    start = time.perf_counter()
    count = sum(1 for _ in batches(data, 64))
    whole = (time.perf_counter() - start) / count
    return {
        "read_sample_ms": statistics.median(reading) * 1e3,
        "collate_64_ms": statistics.median(collating) * 1e3,
        "batch_64_ms": whole * 1e3,
    }


def run(videos: int = 256) -> dict[str, float]:
    """Write a data set, read it and return the timings."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), videos)
        return measure(Path(name))


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
