"""A small run with an index, made once."""

import shutil

import pytest

from crossclr import api
from crossclr.search import build_index
from crossclr.training import load_config

SMALL = {
    "recipe": "paper",
    "training.epochs": 1,
    "model.dim": 16,
    "model.encoder": {"kind": "mlp", "blocks": 0},
    "splits.validate": None,
    "loss.local": {"name": "clip", "temperature": 0.07},
}


@pytest.fixture(scope="session")
def indexed(tmp_path_factory):
    run = api.train(load_config("emoji", SMALL), out=tmp_path_factory.mktemp("fuzz") / "run", baseline=False)
    build_index(run.path, splits=["val"])
    shutil.rmtree(run.path / "tensorboard")
    return run.path
