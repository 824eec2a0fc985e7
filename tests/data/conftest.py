"""Small data sets on disk, in each layout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest


@dataclass
class CootFolder:
    """A data set in COOT's layout, written anew by each test that changes it."""

    path: Path
    meta: dict[str, dict[str, object]]
    video: dict[str, np.ndarray]
    text: dict[str, np.ndarray]
    splits: dict[str, list[int]]

    def write(self) -> CootFolder:
        (self.path / "meta_all.json").write_text(json.dumps(self.meta))
        (self.path / "text_sentence_splits.json").write_text(json.dumps(self.splits))
        for name, content in (("video", self.video), ("text", self.text)):
            with h5py.File(self.path / f"{name}.h5", "w") as file:
                for key, values in content.items():
                    file[key] = values
        return self

    @property
    def config(self) -> dict[str, object]:
        return {"kind": "coot", "root": str(self.path), "video": "video.h5", "text": "text.h5"}


@pytest.fixture
def coot(tmp_path: Path) -> CootFolder:
    rng = np.random.default_rng(0)
    folder = CootFolder(tmp_path, {}, {}, {}, {})
    for number in range(7):
        key, clips = f"video{number}", 2 + number % 3
        rows, duration = 30 + 40 * number, 20.0 + 3 * number
        edges = np.linspace(0, duration, clips + 1)
        folder.meta[key] = {
            "data_key": key,
            "duration_sec": duration,
            "split": "val" if number >= 5 else "train",
            "segments": [
                {"text": f"step {number} {i}", "start_sec": edges[i], "stop_sec": edges[i + 1]} for i in range(clips)
            ],
        }
        folder.video[key] = rng.standard_normal((rows, 6)).astype(np.float16 if number % 2 else np.float32)
        folder.splits[key] = rng.integers(2, 9, clips).tolist()
        folder.text[key] = rng.standard_normal((sum(folder.splits[key]), 4)).astype(np.float32)
    return folder.write()
