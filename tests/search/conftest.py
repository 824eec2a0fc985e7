"""A small run over the built-in set, and its index; no test changes them."""

import functools
import shutil

import faiss
import pytest
import torch

from crossclr import api
from crossclr.search import Searcher, build_index, item_map
from crossclr.training import Run, load_config

SMALL = {
    "recipe": "paper",
    "training.epochs": 5,
    "model.dim": 32,
    "model.encoder": {"kind": "mlp", "blocks": 0},
    "splits.validate": None,
    "loss.local": {"name": "clip", "temperature": 0.07},
}


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads(), faiss.omp_get_max_threads()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    faiss.omp_set_num_threads(before[1])


@pytest.fixture(scope="session", autouse=True)
def small_map():
    """The map is drawn from few landmarks here; tests of the map itself choose their own number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item_map, "project", functools.partial(item_map.project, landmarks=120))
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run without an index."""
    config = load_config("emoji", SMALL)
    return api.train(config, out=tmp_path_factory.mktemp("search") / "run", baseline=False)


@pytest.fixture(scope="session")
def indexed(trained, tmp_path_factory):
    """A run with an index of the splits test and val."""
    path = tmp_path_factory.mktemp("indexed") / "run"
    shutil.copytree(trained.path, path)
    build_index(path, splits=["test", "val"])
    return Run.open(path)


@pytest.fixture(scope="session")
def searcher(indexed):
    opened = Searcher.open(indexed)
    yield opened
    opened.close()


@pytest.fixture
def run_copy(indexed, tmp_path):
    """A copy that a test may change."""
    path = tmp_path / "copy"
    shutil.copytree(indexed.path, path)
    return Run.open(path)
