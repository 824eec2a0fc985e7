"""Runs of a study are named by what decides them."""

import shutil
from pathlib import Path

from crossclr.studies import open_study, trainings
from crossclr.studies.experiments import EXPERIMENTS
from crossclr.studies.trainings import digest
from crossclr.training import RunConfig, load_config
from tests.studies.conftest import write_study


class Later(RunConfig):
    """A config of a later version, which has one part more."""

    later: int | None = None


def test_a_part_that_a_later_version_adds_changes_no_name():
    values = load_config("emoji").model_dump(by_alias=True)
    plain = RunConfig.model_validate(values)
    assert digest(Later.model_validate(values)) == digest(plain)
    assert digest(Later.model_validate({**values, "later": 1})) != digest(plain)


def test_what_decides_a_run_changes_its_name():
    plain = load_config("emoji", {"recipe": "paper"})
    names = {digest(plain)}
    for key, value in (
        ("loss.local.prune_threshold", None),
        ("data.modalities.image", "fluent"),
    ):
        names.add(digest(load_config("emoji", {"recipe": "paper", key: value})))
    assert len(names) == 3
    assert digest(plain.model_copy(update={"seed": 7})) == digest(plain)


def test_an_ablation_of_fewer_seeds(tmp_path):
    study = open_study(write_study(tmp_path / "data", ablation_seeds=1), tmp_path / "out")
    study.given = {"crossclr": {}}
    assert {tuple(variant.seeds) for variant in EXPERIMENTS["ablation"].variants(study)} == {(0,)}


def test_tables_read_each_training_once_and_do_not_search_the_disk_for_each_cell(tables, study, monkeypatch):
    read, searched = [], []
    original_read, original_glob = trainings.read_json_object, Path.glob
    monkeypatch.setattr(trainings, "read_json_object", lambda path: read.append(path) or original_read(path))
    monkeypatch.setattr(Path, "glob", lambda path, pattern: searched.append(pattern) or original_glob(path, pattern))
    again = open_study(study.data, study.out)
    table = EXPERIMENTS["losses"].tables(again)[0]
    assert [str(cell) for cell in table.rows[0]] == [str(cell) for cell in tables["losses"][0].rows[0]]
    jobs = [job for variant in EXPERIMENTS["losses"].variants(again) for job in variant.jobs()]
    assert len(read) == len(set(read)) == len(jobs)
    assert searched == []


def test_a_training_that_was_removed_is_missed(study, tables, tmp_path):
    stored = trainings.StoredTrainings(tmp_path)
    job = EXPERIMENTS["losses"].variants(study)[0].jobs()[0]
    assert stored.find(job) is None
    shutil.copytree(study.finished.find(job), job.path(tmp_path))
    assert stored.find(job) == job.path(tmp_path)
    shutil.rmtree(job.path(tmp_path))
    assert stored.find(job) is None


def test_a_worker_keeps_one_data_set(monkeypatch):
    opened = []
    monkeypatch.setattr(trainings, "Trainer", lambda data, forms: opened.append(data) or object())
    monkeypatch.setattr(trainings, "_trainers", {})
    configs = [load_config("emoji", {"data.modalities.image": name}) for name in ("noto", "fluent")]
    trainings.keep_trainers(1)
    try:
        for config in (*configs, *configs, configs[1]):
            trainings.open_trainer(config)
        assert len(opened) == 4
        assert len(trainings._trainers) == 1
    finally:
        trainings.keep_trainers(4)
