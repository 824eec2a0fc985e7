"""Runs of a study: named by what decides them, and begun with the weights of others where only the end differs."""

import json
from pathlib import Path

import pytest

from crossclr.analysis import EXPERIMENTS, open_study, run_experiments
from crossclr.analysis.studies.compared_losses import METHODS, configure
from crossclr.analysis.studies.stored_trainings import Finished, Job, digest, perform
from crossclr.analysis.studies.trainer import Trainer
from crossclr.training import RunConfig, load_config
from crossclr.training.config.recipes import FITTED_SEARCH
from tests.analysis.conftest import write_study


class Later(RunConfig):
    """A config of a later version, which has one part more."""

    later: int | None = None


def test_a_part_that_a_later_version_adds_changes_no_name():
    values = load_config("emoji").model_dump(by_alias=True)
    plain = RunConfig.model_validate(values)
    assert digest(Later.model_validate(values)) == digest(plain)
    assert digest(Later.model_validate({**values, "later": 1})) != digest(plain)


def test_what_decides_a_run_changes_its_name():
    plain = load_config("emoji", {"hubs": None, "anchors": None, "views": None})
    names = {digest(plain)}
    for key, value in (
        ("views", {}),
        ("hubs", {}),
        ("anchors", {}),
        ("loss.local.prune_threshold", None),
        ("data.a", "fluent"),
    ):
        names.add(digest(load_config("emoji", {"hubs": None, "anchors": None, "views": None, key: value})))
    assert len(names) == 6
    assert digest(plain.model_copy(update={"seed": 7})) == digest(plain)


@pytest.fixture(scope="module")
def base(study_file):
    return open_study(study_file, Path(study_file).parent / "unused").base


def test_fitted_search_begins_with_the_weights_of_its_loss(base, tmp_path, monkeypatch):
    plain, fitted = configure(base, METHODS["clip"]), configure(base, METHODS["clip-fitted"])
    alone = perform(Job("fitted", fitted), tmp_path / "alone")  # trains, since there is nothing to begin with
    perform(Job("plain", plain, keep=True), tmp_path / "both")
    monkeypatch.setattr(Trainer, "train", lambda self, config: pytest.fail("it was trained again"))
    begun = perform(Job("fitted", fitted), tmp_path / "both")
    for name in ("fitted", "validation", "test", "neighbours", "epochs", "best_epoch"):
        assert begun[name] == alone[name]
    assert begun["fitted"].keys() == {"clip/text->sound", "clip/sound->text"}
    folder = Finished(tmp_path / "both").find(Job("fitted", fitted))
    assert json.loads((folder / "results.json").read_text())["test"] == alone["test"]


def test_weights_of_another_seed_are_no_beginning(base, tmp_path, monkeypatch):
    other = configure(base, METHODS["clip"]).model_copy(update={"seed": 1})
    perform(Job("plain", other, keep=True), tmp_path)
    trained = []
    train = Trainer.train
    monkeypatch.setattr(Trainer, "train", lambda self, config: trained.append(config.seed) or train(self, config))
    perform(Job("fitted", configure(base, METHODS["clip-fitted"])), tmp_path)
    assert trained == [0]


def test_a_study_fits_search_on_kept_weights_and_tunes_it_once(tmp_path, monkeypatch):
    study = write_study(tmp_path / "data", methods=["crossclr", "crossclr-fitted", "clip"])
    trained = []
    train = Trainer.train
    monkeypatch.setattr(Trainer, "train", lambda self, config: trained.append(config) or train(self, config))
    study = open_study(study, tmp_path / "out")
    tables = run_experiments(["losses"], study)
    assert not any(config.fits_search for config in trained)
    scores, _, tuning = tables["losses"]
    assert [row[0].text for row in scores.rows[:3]] == ["CrossCLR", "CrossCLR, fitted search", "CLIP"]
    assert [row[0].text for row in tuning.rows] == ["CrossCLR", "CLIP"]
    variant = EXPERIMENTS["losses"].variants(study)[1]
    assert study.tuned("crossclr-fitted").loss == study.tuned("crossclr").loss
    assert all(getattr(variant.config, name) is not None for name in FITTED_SEARCH)
    assert all(found["fitted"] is not None for found in study.results(variant))


def test_an_ablation_of_fewer_seeds(tmp_path):
    study = open_study(write_study(tmp_path / "data", ablation_seeds=1), tmp_path / "out")
    study.given = {"crossclr": {}}
    assert {tuple(variant.seeds) for variant in EXPERIMENTS["ablation"].variants(study)} == {(0,)}
