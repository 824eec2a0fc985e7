import csv
import json
import statistics

import pytest

from crossclr import api
from crossclr.captions import comparison
from crossclr.captions.caption_config import load_caption_config
from crossclr.captions.caption_metrics import METRICS, human_ceiling
from crossclr.captions.caption_training import CaptionTraining
from crossclr.captions.comparison import compare_captions
from crossclr.training.config_files import check_config
from tests.support.tiny_runs import tiny_values, write_coot


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = write_coot(tmp_path_factory.mktemp("data") / "tiny")
    folder = tmp_path_factory.mktemp("runs")
    values = tiny_values(root) | {"training": {"epochs": 1, "batch_size": 4, "accelerator": "cpu", "workers": 0}}
    return [
        api.train(check_config(values | {"seed": seed}), out=folder / f"run{seed}", baseline=False).path
        for seed in (0, 1)
    ]


@pytest.fixture
def config():
    return load_caption_config(
        "small",
        {
            "vocabulary.min_count": 0,
            "model.dim": 16,
            "model.heads": 2,
            "model.word_dim": 8,
            "training.epochs": 1,
            "training.batch_size": 7,
        },
    )


def test_every_run_with_every_seed_in_one_table_and_again_for_nothing(runs, config, tmp_path, monkeypatch):
    out = tmp_path / "out"
    steps = []
    step = CaptionTraining.step
    monkeypatch.setattr(CaptionTraining, "step", lambda self, batch: steps.append(0) or step(self, batch))
    found = compare_captions(runs[:1], config, [0, 5], out, meteor=False)
    assert [row.name for row in found.rows] == ["run0", "untrained"]
    assert len(steps) == 2 * 2 * 2
    row = found.rows[0]
    values = [metrics["CIDEr"] for metrics in row.each]
    assert row.mean["CIDEr"] == pytest.approx(statistics.fmean(values))
    assert row.std["CIDEr"] == pytest.approx(statistics.stdev(values))
    assert row.mean["METEOR"] is None
    stored = json.loads((out / "comparison.json").read_text())
    assert stored["videos"] == found.videos == 6
    assert stored["rows"][1]["each"] == [dict(metrics) for metrics in found.rows[1].each]
    results = json.loads((out / "untrained" / "seed-5" / "results.json").read_text())
    assert results["untrained"] is True
    assert results["seed"] == 5
    with (out / "comparison.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 4
    assert float(lines[0]["CIDEr"]) == row.each[0]["CIDEr"]
    text = (out / "comparison.md").read_text()
    assert text.count("\n| ") == 3
    assert "±" in text
    steps.clear()
    again = compare_captions(runs[:1], config, [0, 5], out, meteor=False)
    assert not steps
    assert again == found


def test_without_java_the_table_has_a_note(runs, config, tmp_path, monkeypatch):
    def missing():
        raise comparison.MeteorError("no Java")

    monkeypatch.setattr(comparison, "Meteor", missing)
    found = compare_captions(runs[:1], config, [0], tmp_path / "out", untrained=False)
    assert found.notes == ("no METEOR: no Java",)
    assert "—" in found.markdown()


def test_people_are_scored_against_the_others():
    references = {
        "a": ["a cat sleeps", "a cat sleeps", "a cat sleeps"],
        "b": ["a dog runs away", "a dog runs away"],
        "c": ["two men talk", "two men talk"],
    }
    found = human_ceiling(references, meteor=False)
    assert found.metrics["Bleu_1"] == pytest.approx(100)
    assert found.metrics["CIDEr"] > 700
    assert set(found.metrics) == set(METRICS)
    apart = {"a": ["one two three", "four five six"], "b": ["seven eight", "nine ten"]}
    assert human_ceiling(apart, meteor=False).metrics["CIDEr"] == 0
    assert human_ceiling({**references, "d": ["alone"]}) is None


@pytest.mark.parametrize("seeds", [[], [1, 1]])
def test_seeds_must_differ(runs, config, tmp_path, seeds):
    with pytest.raises(ValueError, match="different seeds"):
        compare_captions(runs, config, seeds, tmp_path / "out")


def test_runs_need_different_names(runs, config, tmp_path):
    with pytest.raises(ValueError, match="different names"):
        compare_captions([runs[0], runs[0]], config, [0], tmp_path / "out")
