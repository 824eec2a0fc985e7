"""A tiny study whose experiments are all run once for the tests of this folder."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from crossclr.studies import open_study, run_experiments

THINGS, DEEDS = ("dog", "cat", "bird", "cow"), ("runs", "sleeps", "sings")


def write_study(folder: Path, **changes) -> Path:
    """90 clips of two experts with a caption each, and a study around them; gives the study's file."""
    rng = np.random.default_rng(3)
    folder.mkdir(parents=True, exist_ok=True)
    hidden = rng.normal(size=(90, 5))
    rows = {"a": 6, "second": 4, "b": 7}
    for name, dim in rows.items():
        noisy = hidden @ rng.normal(size=(5, dim)) + 0.4 * rng.normal(size=(90, dim)) + 0.5
        np.save(folder / f"{name}.npy", noisy.astype(np.float32))
    np.save(folder / "splits.npy", np.array(["train"] * 50 + ["val"] * 20 + ["test"] * 20))
    texts = {str(n): f"a {THINGS[n % 4]} {DEEDS[n // 4 % 3]} {n % 7}" for n in range(90)}
    (folder / "texts.json").write_text(json.dumps(texts))
    config = {
        "name": "tiny",
        "data": {
            "kind": "arrays",
            "root": str(folder),
            "modalities": {"sound": {"values": "a.npy"}, "text": {"values": "b.npy", "texts": "texts.json"}},
            "splits": "splits.npy",
        },
        "model": {"dim": 8, "encoder": {"kind": "mlp"}},
        "loss": {"local": {"name": "crossclr", "temperature": 0.1, "weight_scale": 0.1, "prune_by": "quantile"}},
        "optimiser": {"name": "adamw", "learning_rate": 0.01, "betas": [0.9, 0.98]},
        "schedule": {"name": "cosine", "warmup_epochs": 0},
        "training": {"epochs": 2, "batch_size": 25, "accelerator": "cpu", "threads": 1},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    study = {
        "config": str(folder / "config.yaml"),
        "about": "Tiny & <made> up.",
        "methods": ["crossclr", "crossclr-mp", "maxmargin", "clip", "ntxent", "coot"],
        "seeds": [0, 1],
        "few_seeds": 2,
        "trials": 2,
        "sweeps": {"optimiser.betas.0": [0.5, 0.9], "queue_size": [0, 60]},
        "positives": [1],
        "positive_weights": [0.1, 0.2],
        "modalities": {"sound": {"sound": {}}, "text": {"text": {}}},
        "experts": {"one": {}, "two": {"data.modalities.sound": {"values": "second.npy"}}},
        "joined_experts": {
            "one + two": {"data.modalities.sound": [{"values": "a.npy"}, {"values": "second.npy"}]},
            "mee": {
                "data.modalities.sound": {"values": "a.npy", "also": [{"values": "second.npy"}], "join": "separate"},
                "model.encoders.sound": {"kind": "experts", "fusion": "mee", "experts": {"one": 6, "two": 4}},
            },
        },
        "fused_experts": [["one", "two"]],
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**study, **changes}))
    return path


@pytest.fixture(scope="session")
def study_file(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("study") / "data")


@pytest.fixture(scope="session")
def study(study_file, tmp_path_factory):
    return open_study(study_file, tmp_path_factory.mktemp("out") / "study")


@pytest.fixture(scope="session")
def tables(study):
    """All experiments, run once."""
    names = ["losses", "ablation", "sweeps", "modalities", "experts", "positives"]
    return run_experiments(names, study)
