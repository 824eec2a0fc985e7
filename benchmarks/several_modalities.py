"""One space for video, picture, English and Spanish, against training the pairs alone.

Needs the data set `exercises` and its text features:

    crossclr extract exercises/english.json --text-only --out text/english
    crossclr extract exercises/spanish.json --text-only --out text/spanish
    python -m benchmarks.several_modalities exercises text --seeds 5 --out results.json
    python -m benchmarks.several_modalities exercises text --seeds 5 --loss clip --out clip.json

Every training has the same budget. Features are mean-pooled, encoders are MLPs. A training takes 10 to 30 seconds of
one core. Of three losses (CLIP at 0.07, also against the mean of the other modalities, and CrossCLR at 0.1), CrossCLR
was chosen on 200 samples held out from the training split. The questions, all about R@10 on the test split:

(a) English → video: all four together against the pair alone.
(b) Spanish → video: the same.
(c) English → video and picture fused, against video alone.
(d) Spanish → video with 60% of the Spanish training texts removed: all four against the pair alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.data import Dataset
from crossclr.evaluation.metrics import evaluate_embeddings, retrieval_validator
from crossclr.models import embed_data
from crossclr.training import JointTraining, MemoryRecorder, fit
from crossclr.training.processes import make_fabric
from crossclr.training.run_config import FitConfig

Rows = npt.NDArray[np.float32]
LOSSES: dict[str, dict[str, Any]] = {
    "clip": {"name": "clip", "temperature": 0.07},
    "crossclr": {"name": "crossclr", "temperature": 0.1, "prune_threshold": None, "weight_scale": None},
}
KEPT = 0.4  # share of the Spanish training texts in (d)
FUSED = ("english->video+picture", "spanish->video+picture")


def load(data: Path, texts: Path) -> tuple[list[str], dict[str, list[str]], dict[str, Rows]]:
    """Keys, splits and one row for each sample and modality."""
    keys, splits = (json.loads((data / f"{name}.json").read_text()) for name in ("keys", "splits"))
    with np.load(data / "video.npz") as file:
        video = _means(file["values"], file["lengths"])
    arrays = {"video": video, "picture": np.load(data / "picture.npy").astype(np.float32)}
    for name in ("english", "spanish"):
        values = np.load(texts / name / "values.npy", mmap_mode="r")
        owners = json.loads((texts / name / "owners.json").read_text())
        rows = dict(zip(owners, _means(values, np.load(texts / name / "lengths.npy")), strict=True))
        arrays[name] = np.stack([rows[key] for key in keys])
    return keys, splits, arrays


def train(
    keys: list[str], splits: dict[str, list[str]], arrays: dict[str, Rows], seed: int, loss: str
) -> dict[str, float]:
    """Train on some modalities; R@10 of the best epoch on the test split, by direction."""
    data = Dataset.from_arrays(arrays, ids=dict.fromkeys(arrays, keys), splits=splits, unpaired="keep").in_memory()
    values: dict[str, Any] = {
        "seed": seed,
        "model": {"dim": 256, "encoder": {"kind": "mlp", "dropout": 0.3, "input_norm": "standard"}},
        "loss": {"local": LOSSES[loss]},
        "optimiser": {"name": "adamw", "learning_rate": 1e-3, "betas": [0.9, 0.98], "weight_decay": 0.05},
        "schedule": {"name": "cosine", "warmup_epochs": 2},
        "training": {"epochs": 40, "batch_size": 128, "accelerator": "cpu", "workers": 0, "threads": 1},
        "validation": {"every": 4, "select_by": "clip/R@10"},
    }
    training = JointTraining(FitConfig.model_validate(values), data.where(split="train"), make_fabric("cpu"))
    recorder = MemoryRecorder()
    fit(training, recorder, validate=retrieval_validator(data.where(split="val"), 256))
    training.model.load_state_dict(recorder.best)
    embeddings = embed_data(training.model, data.where(split="test"), 256)
    found = evaluate_embeddings(embeddings, fused=FUSED if "picture" in arrays else (), progress=False)
    return {direction.removeprefix("clip/"): metrics["R@10"] for direction, metrics in found.items()}


def study(
    keys: list[str], splits: dict[str, list[str]], arrays: dict[str, Rows], seed: int, loss: str
) -> dict[str, float]:
    """The figures of (a) to (d) for one seed."""
    train_keys = splits["train"]
    kept = set(np.random.default_rng(0).permutation(train_keys)[: round(KEPT * len(train_keys))].tolist())
    few = arrays["spanish"].copy()
    few[[number for number, key in enumerate(keys) if key in set(train_keys) - kept]] = np.nan
    together = train(keys, splits, arrays, seed, loss)
    gaps = train(keys, splits, {**arrays, "spanish": few}, seed, loss)

    def alone(name: str, rows: Rows) -> float:
        return train(keys, splits, {"video": arrays["video"], name: rows}, seed, loss)[f"{name}->video"]

    return {
        "english->video, together": together["english->video"],
        "english->video, alone": alone("english", arrays["english"]),
        "spanish->video, together": together["spanish->video"],
        "spanish->video, alone": alone("spanish", arrays["spanish"]),
        "english->video+picture": together["english->video+picture"],
        "spanish->video, 40% of the texts, together": gaps["spanish->video"],
        "spanish->video, 40% of the texts, alone": alone("spanish", few),
    }


def _means(values: Any, lengths: Any) -> Rows:
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return np.stack([np.asarray(values[a:b], np.float32).mean(0) for a, b in pairwise(ends)])


def main() -> None:
    """Train every seed, print means and standard deviations, and write all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data set exercises")
    parser.add_argument("texts", type=Path, help="folder of its text features")
    parser.add_argument("--loss", choices=LOSSES, default="crossclr")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("several_modalities.json"))
    options = parser.parse_args()
    loaded = load(options.data, options.texts)
    found: dict[str, list[float]] = defaultdict(list)
    for seed in range(options.seeds):
        for name, value in study(*loaded, seed, options.loss).items():
            found[name].append(value)
            spread = statistics.stdev(found[name]) if len(found[name]) > 1 else 0.0
            print(f"seed {seed}  {name:44} {value:5.1f}  mean {statistics.fmean(found[name]):5.1f} ± {spread:.1f}")
        options.out.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
