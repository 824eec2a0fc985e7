"""Tuning: one budget, the validation split alone, and a journal from which a killed tuning goes on the same way."""

import json

import pytest

from crossclr.studies import open_study, run_experiments
from crossclr.studies.study_config import METHODS
from crossclr.studies.trainings import Pool, StoredTrainings
from crossclr.studies.tuning import FAILED, objective
from tests.studies.conftest import write_study


def test_every_loss_gets_the_same_budget_and_its_defaults_first(tables, study):
    for name in study.methods:
        found = study.tuner.best(name)
        assert len(found.trials) == 2
        assert set(found.options) == set(METHODS[name].space)
        assert found.best.score == max(trial.score for trial in found.trials)
    assert study.tuner.best("crossclr").trials[0].options == {"temperature": 0.1, "intra_weight": 0.8}
    assert study.tuner.best("maxmargin").trials[0].options == {"margin": 0.2}
    assert study.tuner.best("clip").trials[0].options["temperature"] == pytest.approx(0.1)
    for name, method in METHODS.items():
        if name in study.methods:
            for trial in study.tuner.best(name).trials:
                assert all(method.space[o].low <= v <= method.space[o].high for o, v in trial.options.items())


def test_tuning_never_looks_at_the_test_split(tables, study):
    for name in study.methods:
        for trial in study.tuner.best(name).trials:
            results = study.finished.results(study.tuner.job(name, trial.options))
            assert results["test"] is None
            assert results["neighbours"] is None
            assert trial.score == pytest.approx(objective(results, study.settings.tune_by))


def test_a_killed_tuning_goes_on_the_same_way(study_file, tmp_path, tables, study):
    other = open_study(study_file, tmp_path / "out", trials=4)
    whole = open_study(study_file, tmp_path / "whole", trials=4)
    whole.tuner.tune(["clip"], Pool(whole.out))

    class Killed(Pool):
        left = 2

        def start(self, job, done):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            super().start(job, done)

    with pytest.raises(KeyboardInterrupt):
        other.tuner.tune(["clip"], Killed(other.out))
    assert other.tuner.missing(["clip"]) == 2
    stamps = {path: path.stat().st_mtime_ns for path in other.out.glob("runs/*/*/results.json")}
    again = open_study(study_file, tmp_path / "out", trials=4)
    again.tuner.tune(["clip"], Pool(again.out))
    assert again.tuner.best("clip").trials == whole.tuner.best("clip").trials
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert again.tuner.best("clip").trials[:2] == study.tuner.best("clip").trials  # a larger budget begins alike


def test_options_of_another_study_are_taken_as_they_are(study_file, study, tables, tmp_path):
    other = open_study(study_file, tmp_path / "out", ["training.epochs=1"], seeds=[0], tuned_in=study.out)
    found = run_experiments(["losses"], other)["losses"]
    assert other.tuner.missing(["clip"]) == 2  # nothing was tuned here
    assert other.options("clip") == study.tuner.best("clip").options
    assert "tuned in" in str(found[2].rows[0][3])
    assert f"--tuned-in {study.out}" in other.command("losses")
    with pytest.raises(ValueError, match="crossclr study run losses"):
        open_study(study_file, tmp_path / "x", tuned_in=tmp_path)


def test_another_config_is_tuned_anew(study_file, study, tables):
    other = open_study(study_file, study.out, ["training.epochs=1"])
    assert other.tuner.missing(["clip"]) == 2
    assert study.tuner.missing(["clip"]) == 0


def test_a_lost_run_counts_as_the_worst(study_file, tmp_path):
    overflowing = ["optimiser.learning_rate=1000", "optimiser.weight_decay=1000", "training.batch_size=4"]
    study = open_study(study_file, tmp_path / "out", overflowing, trials=1)
    study.tuner.tune(["clip"], Pool(study.out))
    assert study.tuner.best("clip").best.score == FAILED
    job = study.tuner.job("clip", study.tuner.best("clip").options)
    results = json.loads((StoredTrainings(study.out).find(job) / "results.json").read_text())
    assert "nan" in results["error"].lower()


def test_the_objective_is_the_mean_over_both_directions():
    there, back = {"R@1": 1.0, "nDCG": 5.0}, {"R@1": 3.0, "nDCG": 7.0}
    results = {"validation": {"clip/b->a": there, "clip/a->b": back}}
    assert objective(results, ["R@1"]) == 2.0
    assert objective(results, ["R@1", "nDCG", "unknown"]) == 4.0
    with pytest.raises(ValueError, match="tune_by names"):
        objective(results, ["R@7"])
    assert objective({"error": "x"}, ["R@1"]) == FAILED


def test_rates_and_epochs_are_searched_for_every_loss_with_draws_of_its_own(tmp_path):
    ranges = {
        "optimiser.learning_rate": {"low": 0.001, "high": 0.1},
        "training.epochs": {"low": 1, "high": 3, "whole": True},
    }
    file = write_study(tmp_path / "data", methods=["clip", "ntxent"], trials=3, seeds=[0], tune_also=ranges)
    study = open_study(file, tmp_path / "out")
    study.tuner.tune(["clip", "ntxent"], Pool(study.out))
    clip, ntxent = (study.tuner.best(name).trials for name in ("clip", "ntxent"))
    assert (
        clip[0].options
        == ntxent[0].options
        == {  # the config's own values, where the range has them
            "temperature": 0.1,
            "optimiser.learning_rate": 0.01,
            "training.epochs": 2,
        }
    )
    assert all(one.options != other.options for one, other in zip(clip[1:], ntxent[1:], strict=True))
    assert all(trial.options["training.epochs"] in (1, 2, 3) for trial in clip + ntxent)
    config = study.tuned("clip")
    best = study.options("clip")
    assert config.optimiser.learning_rate == best["optimiser.learning_rate"]
    assert config.training.epochs == best["training.epochs"]
    assert config.loss.local.options["temperature"] == best["temperature"]


def test_without_trials_the_options_of_the_config_are_used(study_file, tmp_path):
    study = open_study(study_file, tmp_path / "out", trials=0)
    assert study.options("crossclr") == {}
    assert study.tuned("crossclr").loss.local == study.base.loss.local
    assert not (study.out / "tuning.jsonl").exists()
