"""A tiny folder with the file names of YouCook2 or LSMDC."""

from pathlib import Path

import h5py
import numpy as np

from tests.support.tiny_runs import write_coot

SMALL = [
    "model.dim=8",
    "model.encoder={kind: transformer, heads: 2}",
    "model.global_encoder={heads: 2}",
    "training.epochs=1",
    "training.batch_size=7",
    "training.accelerator=cpu",
    "validation.first_epoch=0",
]


def write_youcook2(folder: Path) -> Path:
    """Features of a few made-up videos under YouCook2's names, the text features under another one."""
    write_coot(folder)
    (folder / "video.h5").rename(folder / "video_feat_100m.h5")
    (folder / "text.h5").rename(folder / "text_feat_minilm.h5")
    (folder / "text_sentence_splits.json").rename(folder / "text_feat_minilm_sentence_splits.json")
    return folder


def write_lsmdc(folder: Path) -> Path:
    """The same with five experts, as wide as the config says, and a test split."""
    write_youcook2(folder)
    (folder / "video_feat_100m.h5").rename(folder / "narrow.h5")
    for expert, width in {"action": 2048, "appearance": 2048, "scene": 2208, "object": 2048, "100m": 512}.items():
        with h5py.File(folder / "narrow.h5") as narrow, h5py.File(folder / f"video_feat_{expert}.h5", "w") as wide:
            for key in narrow:
                wide[key] = np.resize(narrow[key][()].T, (width, len(narrow[key]))).T
    (folder / "narrow.h5").unlink()
    return folder
