import json

import pytest
import yaml

from crossclr import api
from crossclr.evaluation import write_card
from crossclr.storage.manifest import seal
from crossclr.training import Run
from crossclr.training.config_files import check_config
from tests.support.tiny_runs import tiny_values, write_coot


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card")
    values = tiny_values(write_coot(folder / "data"))
    values["training"]["epochs"] = 1
    return api.train(check_config(values), out=folder / "run")


def test_training_leaves_a_card_with_its_own_results(run):
    text = (run.path / "README.md").read_text()
    for heading in ("Data", "Results", "Training", "Limits", "Licence", "Use"):
        assert f"\n## {heading}\n" in text
    for direction, metrics in run.results["test"].items():
        row = " | ".join(f"{metrics[name]:.1f}" for name in ("R@1", "R@5", "R@10", "R@50", "MdR", "MnR"))
        assert f" | {row} |" in text, direction
    assert text.count("CCA on the same features") == len(run.results["cca_baseline"])
    assert str(run.path) not in text  # a card is passed on
    assert "/" not in text.split("## Data")[1].split("Rows of")[0].replace("and/or", "")
    assert yaml.safe_load(text.split("---")[1])["library_name"] == "crossclr"


def test_an_unfinished_run_and_an_unknown_licence_are_told(run, tmp_path):
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    (copy / "results.json").unlink()
    seal(copy, ["results.json"])
    text = write_card(copy).read_text()
    assert "no results" in text
    assert "does not contain the licence" in text
    shape = json.loads((copy / "model.json").read_text())
    assert f"{shape['dims']['video']:,} (video)" in text
    assert Run.open(copy).results is None
