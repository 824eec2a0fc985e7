"""Small data sets on disk and the configs of runs that train on them within a second."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

VIDEOS = {"train": 14, "val": 6}


def write_coot(folder: Path, dims: tuple[int, int] = (6, 5), seed: int = 0) -> Path:
    """A small set in COOT's layout whose two modalities are linear views of the same hidden vectors."""
    rng = np.random.default_rng(seed)
    views = [rng.normal(size=(4, dim)) for dim in dims]
    meta, splits = {}, {}
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "video.h5", "w") as video, h5py.File(folder / "text.h5", "w") as text:
        for split, count in VIDEOS.items():
            for number in range(count):
                key = f"{split}{number:02}"
                clips = int(rng.integers(2, 5))
                hidden = rng.normal(size=(clips, 4))
                noise = rng.normal(size=(clips * 5, dims[0])) * 0.1
                video[key] = (np.repeat(hidden, 5, axis=0) @ views[0] + noise).astype(np.float32)
                tokens = rng.integers(2, 6, size=clips)
                noise = rng.normal(size=(int(tokens.sum()), dims[1])) * 0.1
                text[key] = (np.repeat(hidden, tokens, axis=0) @ views[1] + noise).astype(np.float32)
                splits[key] = tokens.tolist()
                segments = [{"text": f"do {i}", "start_sec": 5.0 * i, "stop_sec": 5.0 * (i + 1)} for i in range(clips)]
                meta[key] = {"data_key": key, "duration_sec": 5.0 * clips, "split": split, "segments": segments}
    (folder / "meta_all.json").write_text(json.dumps(meta))
    (folder / "text_sentence_splits.json").write_text(json.dumps(splits))
    return folder


def tiny_values(root: Path) -> dict[str, Any]:
    """A config that trains on such a set within a second, with everything that has state switched on."""
    encoder = {"kind": "transformer", "heads": 2, "dropout": 0.2}
    return {
        "name": "tiny",
        "seed": 3,
        "data": {"kind": "coot", "root": str(root), "video": "video.h5", "text": "text.h5", "add_stop_frame": 0},
        "splits": {"train": "train", "validate": "val", "test": "val"},
        "model": {"dim": 8, "encoder": encoder, "global_encoder": {"heads": 2}},
        "loss": {
            "local": {"name": "crossclr", "queue_size": 30},
            "global": {"name": "crossclr"},
        },
        "optimiser": {"learning_rate": 0.01},
        "schedule": {"warmup_epochs": 1, "patience": 0, "cooldown": 0},
        "training": {"epochs": 4, "batch_size": 4, "log_every": 1, "accelerator": "cpu", "workers": 1},
        "validation": {"first_epoch": 1},
    }


def write_config(folder: Path, hidden: NDArray[Any], **changes: Any) -> Path:
    """Files of two modalities that see the same hidden points, the first with noise, and a config of a tiny run.

    The first two thirds of the points are for training, a sixth for validation, a sixth for the test.
    """
    rng = np.random.default_rng(0)
    count, dim = hidden.shape
    a, b = (hidden @ rng.normal(size=(dim, channels)) for channels in (10, 8))
    np.save(folder / "a.npy", (a + rng.normal(size=a.shape)).astype(np.float32))
    np.save(folder / "b.npy", b.astype(np.float32))
    ends = {"train": 4 * count // 6, "val": 5 * count // 6, "test": count}
    splits = {str(row): next(name for name, end in ends.items() if row < end) for row in range(count)}
    (folder / "splits.json").write_text(json.dumps(splits))
    encoder = {"kind": "mlp", "blocks": 0}
    arrays = {"video": {"values": "a.npy"}, "text": {"values": "b.npy"}}
    values = {
        "data": {"kind": "arrays", "root": str(folder), "modalities": arrays, "splits": "splits.json"},
        "model": {"dim": 8, "encoder": encoder},
        "loss": {"local": {"name": "clip"}, "global": None},
        "training": {"epochs": 3, "batch_size": 40, "accelerator": "cpu"},
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps({**values, **changes}))
    return path
