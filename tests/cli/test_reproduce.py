"""`crossclr study reproduce` as a user calls it."""

import json

from typer.testing import CliRunner

from crossclr.cli import app
from crossclr.studies import reproduce as time_estimate
from tests.support.paper_data import SMALL, write_youcook2


def call(*words):
    return CliRunner().invoke(app, ["study", "reproduce", *map(str, words)], env={"COLUMNS": "80"})


def test_a_dry_run_trains_nothing_and_the_command_resumes(tmp_path):
    data, out = write_youcook2(tmp_path / "youcook2"), tmp_path / "out"
    words = ["multiple-positives", "--data", data, "--out", out, "--seeds", "0"]
    words += [word for change in SMALL for word in ("--set", change)]
    shown = call(*words, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert "2 trainings to run" in shown.output
    assert not out.exists()  # nothing is written

    shown = call(*words)
    assert shown.exit_code == 0, shown.output
    runs = sorted(out.glob("runs/*/seed-0"))
    assert [path.parent.name.rpartition("-")[0] for path in runs] == ["crossclr", "crossclr-mp"]
    assert all((path / "best").is_dir() and (path / "README.md").is_file() for path in runs)  # ordinary run folders
    assert "…" not in shown.output
    numbers = json.loads((out / "reproduce-multiple-positives.json").read_text())["numbers"]
    assert all(one["seeds"] == 1 and one["ours"] is not None for one in numbers)

    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*/results.json")}
    assert call(*words).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*/results.json")} == before
    assert "Every training is finished" in call(*words, "--dry-run").output


def test_a_wrong_target_or_folder_is_one_clear_error(tmp_path):
    shown = call("losses", "--data", tmp_path)
    assert "video_feat_100m.h5" in str(shown.exception)
    shown = call("table-1", "--data", write_youcook2(tmp_path / "youcook2"), "--out", tmp_path / "out")
    assert "state-of-the-art" in str(shown.exception)


def test_the_estimate_counts_trainings_at_the_same_time(tmp_path, monkeypatch):
    measured = []

    def seconds_per_epoch(config, in_memory):
        measured.append(in_memory)
        assert real(config, in_memory) > 1e-3  # also if an epoch is a single step
        return 60.0

    real = time_estimate.seconds_per_epoch
    monkeypatch.setattr(time_estimate, "seconds_per_epoch", seconds_per_epoch)
    words = ["losses", "--data", write_youcook2(tmp_path / "youcook2"), "--out", tmp_path / "out", "--seeds", "0"]
    words += ["--set", "training.epochs=1"]
    assert "6.0 min in total" in call(*words, "--dry-run").output
    assert "3.0 min in total" in call(*words, "--clip-level", "--jobs", "2", "--dry-run").output
    assert measured == [False, True]  # the losses cost the same
    words[0] = "state-of-the-art"
    shown = call(*words[:-1], "training.epochs=2", "--dry-run").output
    assert "COOT: about 2.0 min for each seed" in shown
    assert "4.0 min in total" in shown
