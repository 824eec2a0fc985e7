"""Tuning: one budget, the validation split alone, and a journal from which a killed tuning goes on the same way."""

import json

import pytest

from crossclr.analysis import METHODS, open_context, run_experiments
from crossclr.analysis.studies.stored_trainings import Finished
from crossclr.analysis.studies.tuning import LOST, objective
from crossclr.analysis.studies.worker_pool import Pool


def test_every_loss_gets_the_same_budget_and_its_defaults_first(tables, context):
    for name in context.methods:
        found = context.tuner.best(name)
        assert len(found.trials) == 2
        assert set(found.options) == set(METHODS[name].space)
        assert found.score == max(score for _, score in found.trials)
    assert context.tuner.best("crossclr").trials[0][0] == {"temperature": 0.1, "intra_weight": 0.8}
    assert context.tuner.best("maxmargin").trials[0][0] == {"margin": 0.2}
    assert context.tuner.best("clip").trials[0][0]["temperature"] == pytest.approx(0.1)
    for name, method in METHODS.items():
        if name in context.methods:
            for options, _ in context.tuner.best(name).trials:
                assert all(method.space[o].low <= v <= method.space[o].high for o, v in options.items())


def test_tuning_never_looks_at_the_test_split(tables, context):
    for name in context.methods:
        for options, score in context.tuner.best(name).trials:
            results = context.finished.results(context.tuner.job(name, options))
            assert results["test"] is None
            assert results["neighbours"] is None
            assert score == pytest.approx(objective(results, context.study.tune_by))


def test_a_killed_tuning_goes_on_the_same_way(study_file, tmp_path, tables, context):
    other = open_context(study_file, tmp_path / "out", trials=4)
    whole = open_context(study_file, tmp_path / "whole", trials=4)
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
    again = open_context(study_file, tmp_path / "out", trials=4)
    again.tuner.tune(["clip"], Pool(again.out))
    assert again.tuner.best("clip").trials == whole.tuner.best("clip").trials
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert again.tuner.best("clip").trials[:2] == context.tuner.best("clip").trials  # a larger budget begins alike


def test_options_of_another_study_are_taken_as_they_are(study_file, context, tables, tmp_path):
    other = open_context(study_file, tmp_path / "out", ["training.epochs=1"], seeds=[0], tuned_in=context.out)
    found = run_experiments(["losses"], other)["losses"]
    assert other.tuner.missing(["clip"]) == 2  # nothing was tuned here
    assert other.options("clip") == context.tuner.best("clip").options
    assert "tuned in" in str(found[2].rows[0][3])
    assert f"--tuned-in {context.out}" in other.command("losses")
    with pytest.raises(ValueError, match="crossclr experiment losses"):
        open_context(study_file, tmp_path / "x", tuned_in=tmp_path)


def test_another_config_is_tuned_anew(study_file, context, tables):
    other = open_context(study_file, context.out, ["training.epochs=1"])
    assert other.tuner.missing(["clip"]) == 2
    assert context.tuner.missing(["clip"]) == 0


def test_a_lost_run_counts_as_the_worst(study_file, tmp_path):
    context = open_context(study_file, tmp_path / "out", ["optimiser.learning_rate=1e30"], trials=1)
    context.tuner.tune(["clip"], Pool(context.out))
    assert context.tuner.best("clip").score == LOST
    job = context.tuner.job("clip", context.tuner.best("clip").options)
    results = json.loads((Finished(context.out).find(job) / "results.json").read_text())
    assert "NaN" in results["error"]


def test_the_objective_is_the_mean_over_both_directions():
    there, back = {"R@1": 1.0, "nDCG": 5.0}, {"R@1": 3.0, "nDCG": 7.0}
    results = {"validation": {"clip/b->a": there, "clip/a->b": back}}
    assert objective(results, ["R@1"]) == 2.0
    assert objective(results, ["R@1", "nDCG", "unknown"]) == 4.0
    with pytest.raises(ValueError, match="tune_by names"):
        objective(results, ["R@7"])
    assert objective({"error": "x"}, ["R@1"]) == LOST
